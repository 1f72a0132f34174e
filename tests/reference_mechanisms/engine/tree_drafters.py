"""A drafter of trees that are right and wrong at random places."""

from __future__ import annotations

import random
from collections.abc import Sequence

from reference_mechanisms.drafters.protocol import Proposal, Wanted
from reference_mechanisms.request import Request
from reference_mechanisms.verification.tree import ANCHOR


class RandomTrees:
    """Hides a beginning of the recorded continuation, of random length, among random other nodes."""

    def __init__(
        self, recorded: dict[tuple[int, ...], tuple[int, ...]], vocab: int, seed: int, nodes: int = 12
    ) -> None:
        self.recorded, self.vocab, self.nodes = recorded, vocab, nodes
        self.rng = random.Random(seed)  # noqa: S311 - test data
        self.prompts: dict[int, tuple[int, ...]] = {}

    def begin(self, slot: int, request: Request) -> None:
        self.prompts[slot] = request.prompt

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        return [self.tree(one) for one in wanted]

    def tree(self, one: Wanted) -> Proposal:
        right = self.recorded[self.prompts[one.slot]][len(one.token_ids) :][: one.limit]
        right = right[: self.rng.randint(0, min(len(right), 6))]
        ids: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        tip, taken = ANCHOR, 0  # last node of the right path, and how much of it stands
        for _ in range(self.rng.randint(len(right), self.nodes) if one.limit else 0):
            if taken < len(right) and self.rng.random() < 0.5:
                parent, token = tip, right[taken]
            else:
                parent, token = self.rng.randint(ANCHOR, len(ids) - 1), self.rng.randrange(self.vocab)
            depth = 1 if parent == ANCHOR else depths[parent] + 1
            if depth > one.limit or (parent, token) in zip(parents, ids, strict=True):
                continue
            ids.append(token)
            parents.append(parent)
            depths.append(depth)
            if parent == tip and right[taken : taken + 1] == (token,):
                tip, taken = len(ids) - 1, taken + 1
        return Proposal(tuple(ids), parents=tuple(parents))
