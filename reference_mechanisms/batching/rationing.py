"""How the plan of a step reaches a drafter that decides by what it has just drafted."""

from __future__ import annotations

from collections.abc import Sequence

from reference_mechanisms.batching.scheduler import allot
from reference_mechanisms.drafters.scheduling import survivals


class Ration:
    """The plan of one step at a time; `drafters.trained.Drafting` takes its two functions."""

    def __init__(self) -> None:
        """Everything is verified."""
        self._most = 0
        self._budget: int | None = None
        self.worths: list[tuple[float, ...]] = []  # of the drafts of the newest step, as the drafter tells

    def set(self, most: int, budget: int | None) -> None:
        """What a step planned.

        Args:
            most: drafts of each request.
            budget: of all together; None: all.
        """
        self._most, self._budget, self.worths = most, budget, []

    def lengths(self, confidences: Sequence[Sequence[float]]) -> list[int]:
        """Drafts of each chain to verify, from the confidences of its tokens."""
        return self.nodes([survivals(one) for one in confidences])

    def nodes(self, worths: Sequence[Sequence[float]]) -> list[int]:
        """Nodes of each tree to verify, from the probabilities of their paths."""
        self.worths = [tuple(one) for one in worths]
        return list(allot([one[: self._most] for one in worths], self._budget))
