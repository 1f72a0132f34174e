"""What earlier steps say of the next draft: survival of each position, known before it is drawn.

Estimated from verified positions alone: position j counts only in steps that verified j drafts and accepted
the j - 1 in front of it, or what was cut short would look rejected.
"""

from __future__ import annotations

from collections.abc import Sequence

from reference_mechanisms.drafters.scheduling import survivals


class Acceptance:
    """Counts of one request, which leans on those of all until it has its own."""

    def __init__(self, everyone: Acceptance | None = None, decay: float = 0.95, weight: float = 4.0) -> None:
        """Nothing was seen.

        Args:
            everyone: counts that this one leans on; None: a prior of one acceptance in two.
            decay: of older steps, for each newer one.
            weight: of the prior, in steps.
        """
        self._everyone, self._decay, self._weight = everyone, decay, weight
        self._tried: list[float] = []
        self._kept: list[float] = []

    def saw(self, verified: int, accepted: int) -> None:
        """A step verified so many drafts and accepted so many, before any cut at a stop."""
        for position in range(min(verified, accepted + 1)):
            if position == len(self._tried):
                self._tried.append(0.0)
                self._kept.append(0.0)
            self._tried[position] = self._tried[position] * self._decay + 1.0
            self._kept[position] = self._kept[position] * self._decay + float(position < accepted)
        if self._everyone is not None:
            self._everyone.saw(verified, accepted)

    def conditional(self, drafts: int) -> list[float]:
        """Probability of each position, if those in front are accepted."""
        if self._everyone is None:
            prior: Sequence[float] = [0.5] * drafts
        else:
            prior = self._everyone.conditional(drafts)
        found = []
        for position in range(drafts):
            seen = position < len(self._tried)
            tried, kept = (self._tried[position], self._kept[position]) if seen else (0.0, 0.0)
            found.append((kept + self._weight * prior[position]) / (tried + self._weight))
        return found

    def survivals(self, drafts: int) -> tuple[float, ...]:
        """Probability that each position and all in front of it are accepted."""
        return tuple(survivals(self.conditional(drafts)))
