"""Which records to try first on a deployment. Pure.

Records whose preconditions fail are left out; unknown ones stay, marked. The score orders: the pooled
share of a gap that the record closed where it was confirmed, shrunken towards none, times the gap here,
times how alike the deployments are, times how fresh the evidence is. At most two of a kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agent_loop.memory.records import Evidence, Mechanism, Trait

WHOLE = ""  # in place of a component: all that could go away
OF_A_KIND = 2  # records of one gap, or where they name none of one mechanism, in an answer
PRIOR = 1.0  # evidence rows' worth of "closes nothing"
TAU_DAYS = {"cuda": 365.0, "cpu": 365.0, "remote": 90.0}  # how long evidence keeps 1/e of its weight
# Weight of evidence from a deployment that differs in a trait: first guesses, see `agent_loop.memory`.
TRANSFER = {
    "device": 0.4,
    "gpu": 0.7,
    "dtype": 0.8,
    "weights_format": 0.8,
    "stock_drafter": 0.6,
    "batch": 0.5,
}
UNKNOWN_GAP = 0.3  # closable share where no cost model was made
LARGEST_SHARE = 0.95


class Known(NamedTuple):
    """A record with all its evidence."""

    mechanism: Mechanism
    evidence: tuple[Evidence, ...]
    retired: str | None = None  # why it is kept out of every answer


class Match(NamedTuple):
    """A record that may be tried here."""

    mechanism: Mechanism
    score: float
    expected_speedup: float | None
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]


def retrieve(
    known: Sequence[Known],
    traits: Mapping[str, Trait],
    gaps: Mapping[str, float],
    age_days: Mapping[str, float],
    conflicts: Sequence[tuple[str, str]] = (),
    limit: int = 8,
) -> list[Match]:
    """The records to try, best first.

    Args:
        known: all records.
        traits: of this deployment.
        gaps: closable share of stock's time by component; `WHOLE` is all of it.
        age_days: of each evidence row, by `key_of`.
        conflicts: pairs of record ids that did not go together.
        limit: of the answer.
    """
    found = [match for one in known if (match := _match(one, traits, gaps, age_days)) is not None]
    found.sort(key=lambda match: (-match.score, match.mechanism.id))
    kept: list[Match] = []
    for match in found:
        if sum(_kind(one) == _kind(match) for one in kept) >= OF_A_KIND:
            continue
        against = [
            one.mechanism.name for one in kept if _pair(one, match) in {tuple(sorted(c)) for c in conflicts}
        ]
        warned = tuple(f"conflicts with {name}" for name in against)
        kept.append(match._replace(warnings=(*match.warnings, *warned)))
    return kept[:limit]


def key_of(row: Evidence) -> str:
    """Names an evidence row among others."""
    return f"{row.campaign}/{row.mechanism}/{row.date}"


def transfer(there: Mapping[str, Trait], here: Mapping[str, Trait]) -> float:
    """How much evidence from one deployment says of another, 0..1."""
    weight = 1.0
    for trait, factor in TRANSFER.items():
        if there.get(trait) != here.get(trait):
            weight *= factor
    return weight


def freshness(age_days: float, device: Trait) -> float:
    """Weight of evidence of an age."""
    return math.exp(-max(0.0, age_days) / TAU_DAYS.get(str(device), TAU_DAYS["remote"]))


def _match(
    one: Known, traits: Mapping[str, Trait], gaps: Mapping[str, float], age_days: Mapping[str, float]
) -> Match | None:
    mechanism = one.mechanism
    held = {predicate: predicate.holds(traits) for predicate in mechanism.preconditions}
    if False in held.values():
        return None
    weights = [
        transfer(row.traits, traits) * freshness(age_days.get(key_of(row), 0.0), row.traits.get("device"))
        for row in one.evidence
    ]
    gap = gaps.get(mechanism.gap, gaps.get(WHOLE, UNKNOWN_GAP))
    pooled = 0.0
    for row, weight in zip(one.evidence, weights, strict=True):
        share = row.closed if row.closed is not None else _speed_share(row)
        pooled += weight * (min(1.0, max(0.0, share)) if row.positive else 0.0)
    pooled /= sum(weights) + PRIOR
    saved = min(LARGEST_SHARE, pooled * gap)
    negatives = tuple(
        f"{row.outcome} on {row.deployment}: {row.detail}" for row in one.evidence if not row.positive
    )
    unknown = tuple(predicate.trait for predicate, holds in held.items() if holds is None)
    alike = max((w for w, row in zip(weights, one.evidence, strict=True) if row.positive), default=0.0)
    expected = 1.0 / (1.0 - saved) if pooled > 0.0 else None
    return Match(mechanism, saved * alike, expected, unknown, negatives)


def _speed_share(row: Evidence) -> float:
    """Saved share of stock's time, in place of the share of a gap that nobody measured."""
    return 0.0 if row.effect is None else 1.0 - 1.0 / row.effect.point


def _kind(match: Match) -> str:
    return match.mechanism.gap or match.mechanism.name


def _pair(one: Match, other: Match) -> tuple[str, ...]:
    return tuple(sorted((one.mechanism.id, other.mechanism.id)))
