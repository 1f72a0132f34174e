"""Draft trees in steps of fixed shape, in plain torch: layout, attention, walk, what is kept, and planting.

A tree's rows lie one behind the other in the cache, behind the committed positions. What a row sees has the
order of the chain that leads to it: at the position of each ancestor, that ancestor's key. So every sum has
the addends, the places and the rounding of the chain, and a row is bitwise the row of its chain. Nothing here
asks the host: parents are numbers on the device, and loops have as many turns as a tree may have levels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.kernels.step.twin import write
from reference_mechanisms.targets.attention import attend_rows
from reference_mechanisms.targets.layer_ops import LayerOps, TorchOps
from reference_mechanisms.verification.growing import Children, Growth, grow_levels
from reference_mechanisms.verification.tree import ANCHOR, PADDING
from reference_mechanisms.verification.walking import compact, greedy_walk


class TreeTurn(NamedTuple):
    """Buffers of a request whose steps verify trees, all int64.

    The anchor is row 0, node n of the tree is row n + 1. A path has `levels` + 1 rows: what stands behind the
    accepted ones repeats the last of them.
    """

    state: Tensor  # [2 x rows + 3]: token and parent row of each row, position, nodes that count, depth left
    depths: Tensor  # [rows]: steps from the anchor
    paths: Tensor  # [rows, levels + 1]: row at each depth on the way to a row; the row itself behind its own
    choices: Tensor  # [rows]: argmax of each row, the first of equals
    before: Tensor  # [1]: position of the anchor in front of the step
    accepted: Tensor  # [1]: draft tokens
    path: Tensor  # [levels + 1]: accepted rows, the anchor's first
    report: Tensor  # [3 x rows + levels + 4]: position, nodes, accepted, path, tokens, choices, finite

    @property
    def rows(self) -> int:
        """The anchor's and the nodes'."""
        return self.choices.shape[0]

    @property
    def ids(self) -> Tensor:
        """Token of each row."""
        return self.state[: self.rows]

    @property
    def parents(self) -> Tensor:
        """Row in front of each row; `tree.ANCHOR` for the anchor, `tree.PADDING` for what is no node."""
        return self.state[self.rows : 2 * self.rows]

    @property
    def start(self) -> Tensor:
        """Position of the anchor, [1]."""
        return self.state[2 * self.rows : 2 * self.rows + 1]

    @property
    def drafted(self) -> Tensor:
        """Nodes that count, [1]."""
        return self.state[2 * self.rows + 1 : 2 * self.rows + 2]

    @property
    def limit(self) -> Tensor:
        """Levels that can still be used, [1]."""
        return self.state[2 * self.rows + 2 :]


class TreeStand(NamedTuple):
    """Where the rows of a target's forward stand."""

    start: Tensor  # [1]: position of the anchor, and slot of the first row
    depths: Tensor  # as in `TreeTurn`
    paths: Tensor
    rotations: Tensor  # of all positions, `targets.rope.rotation_table`
    places: tuple[Tensor, ...]  # cache of each layer, [2 x kv_heads, capacity, head_dim]
    eps: float  # of the norms


class Seeds(NamedTuple):
    """What a tree of marginals grows from: one list of children for each level, whatever stands in front."""

    token_ids: Tensor  # [levels, children], the best first
    worth: Tensor  # log-probability of each behind its parent, not rising with the rank
    off_spine: Tensor  # [1], added to the worth behind any token that was not the best of its list; at most 0


class TreeKernels(NamedTuple):
    """One way to compute what a step of trees does beside its products."""

    ops: Callable[[TreeStand], LayerOps]
    lay: Callable[[TreeTurn], None]
    settle: Callable[[Tensor, TreeTurn], None]
    move: Callable[[tuple[Tensor, ...], TreeTurn], None]
    plant: Callable[[Seeds, int, TreeTurn], None]
    candidates: Callable[[Tensor, int], tuple[Tensor, Tensor]]


def new_tree_turn(rows: int, levels: int, device: torch.device) -> TreeTurn:
    """Buffers of zeros."""

    def numbers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    return TreeTurn(
        numbers(2 * rows + 3),
        numbers(rows),
        numbers(rows, levels + 1),
        numbers(rows),
        numbers(1),
        numbers(1),
        numbers(levels + 1),
        numbers(3 * rows + levels + 4),
    )


def lay(turn: TreeTurn) -> None:
    """Fill in depths and paths from the parents; padding stands on the first level."""
    span = turn.paths.shape[1]
    above = turn.parents.clamp_min(0)
    up = [torch.arange(turn.rows, device=above.device)]
    for _ in range(1, span):
        up.append(above[up[-1]])
    climbed = torch.stack(up, 1)  # [rows, span]: the row itself, its parent, ..., the anchor for ever
    turn.depths.copy_((climbed != 0).sum(1))
    steps = turn.depths[:, None] - torch.arange(span, device=above.device)
    turn.paths.copy_(climbed.gather(1, steps.clamp_min(0)))


def tree_ops(stand: TreeStand) -> TorchOps:
    """`targets.layer_ops.LayerOps` of a tree's rows; each sees the cache as its own chain has it."""
    place, count = stand.places[0], len(stand.depths)
    column = torch.arange(place.shape[1], device=place.device)
    inside = column - stand.start
    span = stand.paths.shape[1]
    own = stand.start + stand.paths[:, inside.clamp(0, span - 1)]
    source = torch.where((inside >= 0) & (inside < span), own, column)  # [rows, capacity]
    positions = stand.start + stand.depths
    slots = stand.start + torch.arange(count, device=place.device)

    def attention(layer: int, qkv: Tensor) -> Tensor:
        place = stand.places[layer]
        heads = qkv.shape[1] - len(place)
        write(place, slots, qkv[:, heads:])
        hidden = column > positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=qkv.dtype, device=place.device)
        mask.masked_fill_(hidden, -torch.inf)
        seen = place[:, source].transpose(0, 1)
        keys, values = seen.chunk(2, dim=1)
        return attend_rows(qkv[:, :heads], keys, values, mask[:, None, None])

    return TorchOps(stand.eps, len(place) // 2, stand.rotations[positions], attention)


def settle(logits: Tensor, turn: TreeTurn) -> None:
    """Walk along the target's choices and move on; the next tree is planted by whoever drafts.

    Args:
        logits: [rows, vocabulary].
        turn: buffers, laid out.
    """
    choices = logits.argmax(-1)
    finite = logits.gather(-1, choices[:, None]).squeeze(1).isfinite().to(torch.int64)
    turn.choices.copy_(choices)
    levels = turn.paths.shape[1] - 1
    walk = greedy_walk(turn.ids[None, 1:], turn.parents[None, 1:] - 1, choices[None], levels)
    turn.accepted.copy_(walk.counts)
    turn.path.copy_(walk.path[0])
    turn.report.copy_(
        torch.cat((turn.start, turn.drafted, walk.counts, walk.path[0], turn.ids, choices, finite))
    )
    turn.before.copy_(turn.start)
    turn.start.add_(walk.counts + 1)
    turn.limit.sub_(walk.counts + 1)
    turn.ids[:1].copy_(walk.bonus)


def move(places: tuple[Tensor, ...], turn: TreeTurn) -> None:
    """Bring the keys and values of the accepted path together, behind what was committed."""
    sources = turn.before + turn.path
    destinations = turn.before + torch.arange(len(turn.path), device=sources.device)
    for place in places:
        compact(place, sources, destinations)


class _Listed:
    """`growing.Branching` of `Seeds`."""

    def __init__(self, seeds: Seeds) -> None:
        self._seeds = seeds
        self._spine = torch.empty(0)

    def children(self, depth: int, token_ids: Tensor, parents: Tensor) -> Children:
        seeds, (requests, nodes) = self._seeds, token_ids.shape
        if depth == 0:
            spine = torch.ones_like(token_ids, dtype=torch.bool)
        else:
            spine = self._spine.gather(1, parents) & (token_ids == seeds.token_ids[depth - 1, 0])
        self._spine = spine
        worth = seeds.worth[depth] + torch.where(spine, 0.0, seeds.off_spine.to(seeds.worth.dtype))[..., None]
        return Children(seeds.token_ids[depth].expand(requests, nodes, -1), worth)


def plant(seeds: Seeds, nodes: int, turn: TreeTurn) -> None:
    """The tree of the most probable paths, as `growing.grow` finds it, behind the anchor.

    Args:
        seeds: as many levels as a path has, or fewer.
        nodes: of the tree, at most; fewer than rows.
        turn: buffers; the levels that can be used are those of its limit.
    """
    growth = Growth(nodes, len(seeds.token_ids))
    grown = grow_levels(_Listed(seeds), turn.ids[:1], growth, turn.limit[None])
    put(grown.token_ids[0], grown.parents[0], turn)


def put(token_ids: Tensor, parents: Tensor, turn: TreeTurn) -> None:
    """Make a tree the next draft.

    Args:
        token_ids: of up to rows - 1 nodes.
        parents: of the nodes, as in `verification.growing.Grown`.
        turn: buffers.
    """
    count = 1 + len(token_ids)
    node = parents > PADDING
    turn.ids[1:count].copy_(token_ids)
    turn.parents[1:count].copy_(torch.where(node, parents + 1, PADDING))
    turn.parents[count:].fill_(PADDING)
    turn.parents[:1].fill_(ANCHOR)
    turn.drafted.copy_(node.sum()[None])


def candidates(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best tokens of each row, of equal ones the first, and their log-probabilities.

    Args:
        logits: [rows, vocabulary].
        count: of a row, at most the vocabulary.

    Returns:
        Both [rows, count].
    """
    worth = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    ids = logits.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return ids, worth.gather(1, ids)


TORCH_TREES = TreeKernels(tree_ops, lay, settle, move, plant, candidates)
