"""Grows the tree of the most probable paths, level by level, for a whole batch at once.

Source: the objective and its optimum are those of DDTree (arXiv 2604.12989): a path is worth its probability,
no path is worth more than its beginning, so the B most probable paths are a tree, and no tree of B nodes is
worth more. Growing by levels (as EAGLE-2 does, arXiv 2406.16858) finds the same tree as a heap: a node among
the best B has all its ancestors among them, and is among the best B of its level. Each level is one call of
the drafter for all requests, and nothing asks the device anything.

Order, and so every tie, is decided alike in each run: larger path probability first, then the shallower
node, then the child of the earlier parent, then the child that the drafter names first. Nodes come in this
order, so that the tree of a smaller budget is the beginning of the tree of a larger one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from reference_mechanisms.verification.tree import ANCHOR, PADDING, DraftTree

NOTHING = -math.inf


class Children(NamedTuple):
    """Continuations of each parent, the best ones first."""

    token_ids: Tensor  # [requests, parents, children]; no token twice behind one parent
    log_probabilities: Tensor  # of the same shape, behind the parent


class Branching(Protocol):
    """A drafter that names the children of a node. It is asked level by level, once for each."""

    def children(self, depth: int, token_ids: Tensor, parents: Tensor) -> Children:
        """Children of the nodes of one level.

        Args:
            depth: of the parents: 0 for the anchor, the number of draft tokens in front of the children.
            token_ids: of the parents, [requests, parents]; at depth 0 the anchors, [requests, 1].
            parents: where each of them stands among the nodes of the call before, [requests, parents];
                zeros at depth 0.
        """
        ...


class Grown(NamedTuple):
    """Trees of a batch, on the device; what lies behind `counts` is padding."""

    token_ids: Tensor  # [requests, nodes]
    parents: Tensor  # [requests, nodes], `tree.ANCHOR` for the first level, `tree.PADDING` for padding
    log_probabilities: Tensor  # behind the parent, [requests, nodes]
    path_log_probabilities: Tensor  # [requests, nodes], not rising; -inf for padding
    counts: Tensor  # [requests]


class Growth(NamedTuple):
    """Sizes of trees."""

    nodes: int  # at most
    levels: int  # that the drafter is asked for, at least 1
    width: int | None = None  # as in `grow`


class _Level(NamedTuple):
    token_ids: Tensor  # [requests, nodes]
    parents: Tensor  # among the nodes of the level before, [requests, nodes]
    own: Tensor  # log-probabilities
    path: Tensor


def grow(
    branching: Branching, anchors: Tensor, *, budget: int, depths: Sequence[int], width: int | None = None
) -> Grown:
    """The trees of the `budget` most probable paths.

    Args:
        branching: of the drafter.
        anchors: newest token of each request, [requests].
        budget: most nodes of a tree.
        depths: most levels of each request.
        width: nodes of a level whose children are asked for; None: as many as can count, which gives the
            best tree; fewer give the best tree among the children of the best `width` of each level.

    Raises:
        ValueError: nothing may be drafted.
    """
    if budget < 1 or max(depths) < 1:
        raise ValueError(
            f"a `budget` of {budget} nodes in `depths` of {list(depths)}: both must be at least 1"
        )
    most = torch.tensor(depths, device=anchors.device)[:, None]
    return grow_levels(branching, anchors, Growth(budget, max(depths), width), most)


def grow_levels(branching: Branching, anchors: Tensor, growth: Growth, most: Tensor) -> Grown:
    """The same with the depths on the device: nothing in it asks the host.

    Args:
        branching: as in `grow`.
        anchors: as in `grow`.
        growth: sizes of the trees.
        most: levels of each request, [requests, 1]; a request may have none.
    """
    budget, levels, width = growth.nodes, growth.levels, growth.width or growth.nodes
    width = min(width, budget)
    tokens, parents = anchors[:, None], torch.zeros_like(anchors)[:, None]
    before = torch.zeros(tokens.shape, dtype=torch.float64, device=anchors.device)
    grown: list[_Level] = []
    for depth in range(levels):
        ids, log_probabilities = branching.children(depth, tokens, parents)
        own = log_probabilities.double().nan_to_num(nan=NOTHING, neginf=NOTHING).clamp_max(0.0)
        own = own.masked_fill((most <= depth)[..., None], NOTHING)
        fan = own.shape[-1]
        path, order = (before[..., None] + own).flatten(1).sort(dim=1, descending=True, stable=True)
        path, order = path[:, :budget], order[:, :budget]
        level = _Level(ids.flatten(1).gather(1, order), order // fan, own.flatten(1).gather(1, order), path)
        grown.append(level)
        # The next call's parents are the first of this level, and know their own parents by place.
        tokens, parents, before = (part[:, :width] for part in (level.token_ids, level.parents, level.path))
    return _best(grown, budget)


def _best(levels: Sequence[_Level], budget: int) -> Grown:
    """The best nodes of all levels, each behind its parent."""
    path, order = torch.cat([level.path for level in levels], 1).sort(dim=1, descending=True, stable=True)
    offsets = [0]
    for level in levels:
        offsets.append(offsets[-1] + level.path.shape[1])
    above = [levels[0].parents.new_full(levels[0].parents.shape, -1)]
    above += [level.parents + offset for level, offset in zip(levels[1:], offsets, strict=False)]
    place = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand(order.shape)
    )
    order, path = order[:, :budget], path[:, :budget]
    above_chosen = torch.cat(above, 1).gather(1, order)
    parents = torch.where(above_chosen < 0, ANCHOR, place.gather(1, above_chosen.clamp_min(0)))
    return Grown(
        torch.cat([level.token_ids for level in levels], 1).gather(1, order),
        parents.masked_fill(path == NOTHING, PADDING),
        torch.cat([level.own for level in levels], 1).gather(1, order),
        path,
        (path > NOTHING).sum(1),
    )


def trees_of(grown: Grown) -> list[DraftTree]:
    """The trees as records on the host."""
    parts = (grown.token_ids.tolist(), grown.parents.tolist(), grown.log_probabilities.tolist())
    return [
        DraftTree(tuple(ids[:count]), tuple(parents[:count]), tuple(own[:count]))
        for ids, parents, own, count in zip(*parts, grown.counts.tolist(), strict=True)
    ]


def best_children(log_probabilities: Tensor, ids: Tensor, count: int) -> Children:
    """The `count` best candidates behind each parent.

    Args:
        log_probabilities: [requests, parents, candidates].
        ids: target id of each candidate, [candidates] or of the shape of `log_probabilities`.
        count: children of a parent, at most.
    """
    best = log_probabilities.topk(min(count, log_probabilities.shape[-1]), dim=-1)
    return Children(ids.expand(log_probabilities.shape).gather(-1, best.indices), best.values)


class Marginals:
    """Children from one distribution a position, whatever stands in front: DFlash."""

    def __init__(self, logits: Tensor, ids: Tensor, count: int) -> None:
        """The `count` best tokens of every position.

        Args:
            logits: of the positions behind the anchor, [requests, positions, candidates].
            ids: target id of each candidate, [candidates].
            count: children of a node, at most; a tree of B nodes has no use for more than B.
        """
        self._best = best_children(logits.float().log_softmax(-1), ids, count)

    def children(self, depth: int, token_ids: Tensor, parents: Tensor) -> Children:
        """As in `Branching`."""
        del parents
        shape = (-1, token_ids.shape[1], -1)
        return Children(*(part[:, depth, None].expand(shape) for part in self._best))
