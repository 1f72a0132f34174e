"""Traces from a seed with an acceptance length that is imposed, at one draft length or at two.

At each place of an output a draft token is accepted, once all before it are, with a chance whose log-odds
are normal numbers: a part of the request, and a part of the place that changes slowly along the output, for
texts have easy and hard stretches. The mean of the log-odds gives the acceptance length at the longest draft;
their spread the one at a shorter draft: the more they spread, the more of the length comes from long drafts
of few places. Confidences are the chances with noise; they know nothing of what will be accepted beyond it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reference_mechanisms.batching.traces.format import Attempt, Recording, Siblings, Trace, TraceError

ODDS = 12.0  # log-odds beyond which a chance is taken for 0 or 1
WIDEST = 6.0  # spread of log-odds that is tried
HALVINGS, OUTER_HALVINGS = 18, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Imposed:
    """What is imposed."""

    lengths: Mapping[int, float] = field(default_factory=lambda: {15: 6.5, 7: 4.5})  # by drafts; one or two
    requests: int = 256
    prompt: int = 128
    tokens: int = 400
    spread: float = 1.0  # of the log-odds, where only one length is given
    between: float = 0.3  # share of the variance that is of the request
    kept: float = 0.9  # correlation of a place with the one in front of it
    noise: float = 0.5  # of the log-odds of a confidence
    siblings: Siblings | None = None  # None: no ranks are told
    seed: int = 0

    def __post_init__(self) -> None:
        """Hold that there can be such traces.

        Raises:
            TraceError: naming the field.
        """
        if not 1 <= len(self.lengths) <= 2 or min(self.lengths) < 1:
            raise TraceError("`lengths`: give the acceptance length at one or two draft lengths of 1 or more")
        for drafts, length in self.lengths.items():
            if not 1.0 < length < drafts + 1:
                raise TraceError(f"`lengths`: {length} with {drafts} drafts; give 1 to {drafts + 1}")
        if self.requests < 1 or self.prompt < 1 or self.tokens < 2:
            raise TraceError("`requests` and `prompt` are at least 1, `tokens` at least 2")
        if not 0 <= self.between <= 1 or not 0 <= self.kept < 1 or min(self.spread, self.noise) < 0:
            raise TraceError("`between` lies in 0..1, `kept` below 1, `spread` and `noise` are not negative")
        if self.siblings is None:
            return
        shares, off = self.siblings.shares, self.siblings.off_spine
        if not shares or min(shares) < 0.0 or sum(shares) > 1.0 or not 0.0 <= off <= 1.0:
            raise TraceError("`siblings`: shares of 0 or more make 1 at most, and `off_spine` lies in 0..1")


class _Place(NamedTuple):
    deviation: float  # of the log-odds, of variance 1
    luck: float  # logarithm of a uniform number: of the draft's length


def impose(wanted: Imposed) -> tuple[Recording, tuple[Trace, ...]]:
    """Draw traces; the same arguments give the same traces.

    Raises:
        TraceError: no spread gives both lengths.
    """
    places = _draw(wanted)
    longest = max(wanted.lengths)
    mean, spread = _fitted(wanted, places)
    noisy = random.Random(f"confidences {wanted.seed}")  # noqa: S311 - no secret
    lucky = random.Random(f"siblings {wanted.seed}")  # noqa: S311 - no secret

    def attempt(place: _Place) -> Attempt:
        odds = mean + spread * place.deviation
        confidences = (_chance(odds + wanted.noise * noisy.gauss(0.0, 1.0)) for _ in range(longest))
        accepted = _accepted(odds, place.luck, longest)
        told = tuple(round(one, 3) for one in confidences)
        if wanted.siblings is None:
            return Attempt(accepted, told)
        return Attempt(accepted, told, _ranks(accepted, longest, _chance(odds), wanted.siblings, lucky))

    told = ", ".join(f"{length} at {drafts} drafts" for drafts, length in sorted(wanted.lengths.items()))
    source = (
        f"imposed: {told}; log-odds of mean {mean:.4f} and spread {spread:.4f}, {wanted.between} of the "
        f"variance between requests, places correlated {wanted.kept}, confidences with noise {wanted.noise}; "
        f"seed {wanted.seed}"
    )
    if wanted.siblings is not None:
        shares, off = wanted.siblings.shares, wanted.siblings.off_spine
        source += f"; siblings right in {', '.join(map(str, shares))} of the misses, {off} off the spine"
    recording = Recording(source=source, drafts=longest, synthetic=True, siblings=wanted.siblings)
    return recording, tuple(
        Trace(prompt=wanted.prompt, tokens=wanted.tokens, attempts=tuple(map(attempt, one))) for one in places
    )


def _draw(wanted: Imposed) -> list[list[_Place]]:
    rng = random.Random(f"places {wanted.seed}")  # noqa: S311 - no secret
    own, shared = math.sqrt(1.0 - wanted.between), math.sqrt(wanted.between)
    fresh = math.sqrt(1.0 - wanted.kept**2)
    found = []
    for _ in range(wanted.requests):
        request, here, places = rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0), []
        for _ in range(wanted.tokens - 1):
            places.append(_Place(shared * request + own * here, math.log(1.0 - rng.random())))
            here = wanted.kept * here + fresh * rng.gauss(0.0, 1.0)
        found.append(places)
    return found


def _fitted(wanted: Imposed, places: Sequence[Sequence[_Place]]) -> tuple[float, float]:
    """Mean and spread of the log-odds."""
    longest, shortest = max(wanted.lengths), min(wanted.lengths)

    def mean_for(spread: float) -> float:
        def too_long(mean: float) -> bool:
            return _length(places, mean, spread, longest) > wanted.lengths[longest]

        return _bisect(too_long, -ODDS, ODDS, HALVINGS)

    if longest == shortest:
        return mean_for(wanted.spread), wanted.spread

    def short_enough(spread: float) -> bool:
        return _length(places, mean_for(spread), spread, shortest) < wanted.lengths[shortest]

    if short_enough(0.0) or not short_enough(WIDEST):
        raise TraceError(
            f"`lengths`: no spread of chances gives {wanted.lengths[longest]} with {longest} drafts and "
            f"{wanted.lengths[shortest]} with {shortest}; move one of them"
        )
    spread = _bisect(short_enough, 0.0, WIDEST, OUTER_HALVINGS)
    return mean_for(spread), spread


def _bisect(beyond: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """Where `beyond` begins to hold."""
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return (low + high) / 2


def _length(places: Sequence[Sequence[_Place]], mean: float, spread: float, drafts: int) -> float:
    """Mean tokens of the steps of requests that always draft so many."""
    tokens = steps = 0
    for one in places:
        at = 0
        while at < len(one):
            emitted = 1 + _accepted(mean + spread * one[at].deviation, one[at].luck, drafts)
            tokens, steps, at = tokens + emitted, steps + 1, at + emitted
    return tokens / steps


def _accepted(odds: float, luck: float, drafts: int) -> int:
    """Accepted drafts: as many as a chance that is tried until it fails gives, no more than there are."""
    if odds >= ODDS:
        return drafts
    return min(drafts, int(luck / math.log(_chance(odds)))) if odds > -ODDS else 0


def _ranks(
    accepted: int, levels: int, chance: float, siblings: Siblings, lucky: random.Random
) -> tuple[int, ...]:
    """Ranks of the target's tokens behind the accepted ones, up to the first that is in no list."""
    ranks = [0] * accepted
    best = 0.0  # the first level behind them is one where the best token is wrong
    factor = 1.0
    while len(ranks) < levels:
        worths = [best, *((1.0 - best) * share for share in siblings.shares)]
        draw, rank = lucky.random(), 0
        while rank < len(worths) and draw >= factor * worths[rank]:
            draw -= factor * worths[rank]
            rank += 1
        if rank == len(worths):
            break
        ranks.append(rank)
        best, factor = chance, siblings.off_spine  # behind a token that was not the best
    return tuple(ranks)


def _chance(odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-ODDS, min(ODDS, odds))))
