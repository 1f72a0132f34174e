"""`replay` acceptance of draft trees: what traces say of siblings decides which path the target follows.

A trace tells, level by level, the rank that the target's token has in the drafter's list. So the target's own
continuation stands at that rank of each level, the other tokens are wrong, and the tree is grown by what the
drafter is said to expect: as drafters grow theirs, and cut where a budget of all requests says. The inner
drafter drafts a whole chain in every step; what its lists would cost beyond the best token is not in a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.batching.bench.replaying import Known, Recalling
from reference_mechanisms.batching.traces.format import Attempt, Siblings
from reference_mechanisms.drafters.protocol import ContextDrafter, Proposal, Wanted
from reference_mechanisms.drafters.scheduling import Lengths
from reference_mechanisms.verification.growing import Children, grow, trees_of


class Sizes(NamedTuple):
    """Of trees."""

    nodes: int  # at most
    levels: int  # at most
    vocabulary: int


class TracedChildren:
    """`growing.Branching` of lists that hang on the level alone, as those of block drafters do."""

    def __init__(self, lists: Tensor, worths: Tensor, off_spine: float) -> None:
        """Of a batch.

        Args:
            lists: tokens of each level, the best first, [requests, levels, children].
            worths: log-probability of each behind best tokens only, of the same shape.
            off_spine: factor of what stands behind another token.
        """
        self._lists, self._worths = lists, worths
        self._off = math.log(off_spine) if off_spine > 0.0 else -math.inf
        self._spine = torch.empty(0)

    def children(self, depth: int, token_ids: Tensor, parents: Tensor) -> Children:
        """As in `growing.Branching`."""
        spine = torch.ones_like(token_ids, dtype=torch.bool)
        if depth:
            best = self._lists[:, depth - 1, :1]
            spine = self._spine.gather(1, parents) & (token_ids == best)
        self._spine = spine
        factor = torch.where(spine, 0.0, self._off)[..., None]
        ids = self._lists[:, depth, None].expand(-1, token_ids.shape[1], -1)
        return Children(ids, self._worths[:, depth, None] + factor)


class ReplayedTrees(Recalling):
    """`protocol.ContextDrafter` of trees that are accepted as traces say."""

    def __init__(
        self,
        inner: ContextDrafter,
        known: Mapping[tuple[int, ...], Known],
        siblings: Siblings,
        sizes: Sizes,
        counts: Lengths | None = None,
    ) -> None:
        """Replay.

        Args:
            inner: drafts chains whole, for nothing.
            known: by prompt; the traces tell ranks.
            siblings: of the traces.
            sizes: of the trees.
            counts: nodes of each tree to verify, from the probabilities of their paths; None: all.
        """
        super().__init__(inner, known)
        self._siblings, self._sizes, self._counts = siblings, sizes, counts

    @torch.inference_mode()
    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """As in `protocol.Drafter`."""
        self._inner.propose(wanted)
        asked = [one for one in wanted if one.limit > 0]
        if not asked:
            return [Proposal(()) for _ in wanted]
        sizes = self._sizes
        attempts = [self._attempt(one) for one in asked]
        lists = torch.tensor([self._list(one, at) for one, at in zip(asked, attempts, strict=True)])
        worths = torch.tensor([worths_of(at, self._siblings, sizes.levels) for at in attempts]).log()
        anchors = torch.tensor([one.token_ids[-1] for one in asked])
        depths = [min(sizes.levels, one.limit) for one in asked]
        branching = TracedChildren(lists, worths, self._siblings.off_spine)
        trees = trees_of(grow(branching, anchors, budget=sizes.nodes, depths=depths))
        if self._counts is not None:
            counts = self._counts([tree.path_probabilities for tree in trees])
            trees = [tree.first(count) for tree, count in zip(trees, counts, strict=True)]
        found = {
            one.slot: Proposal(tree.token_ids, parents=tree.parents)
            for one, tree in zip(asked, trees, strict=True)
        }
        return [found.get(one.slot, Proposal(())) for one in wanted]

    def _list(self, one: Wanted, attempt: Attempt) -> list[list[int]]:
        """Tokens of each level: the right one at its rank, others beside it."""
        sizes = self._sizes
        right = self._continuation(one, sizes.levels)
        found = []
        for level in range(sizes.levels):
            truth = right[level] if level < len(right) else 0
            tokens = [(truth + 1 + n) % sizes.vocabulary for n in range(1 + len(self._siblings.shares))]
            rank = attempt.ranks[level] if level < min(len(attempt.ranks), len(right)) else -1
            if 0 <= rank < len(tokens):
                tokens[rank] = truth
            found.append(tokens)
        return found


def worths_of(attempt: Attempt, siblings: Siblings, levels: int) -> list[list[float]]:
    """Probability of each rank of each level behind best tokens, not rising with the rank.

    Args:
        attempt: with the drafter's confidences in its best tokens.
        siblings: what the others are worth where the best is wrong.
        levels: that are told.
    """
    found = []
    for level in range(levels):
        best = attempt.confidences[level]
        worths = [best]
        for share in siblings.shares:
            worths.append(min(worths[-1], (1.0 - best) * share))
        found.append(worths)
    return found
