"""Stock, tuned: which of its own settings is best, and what a candidate must gain over it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agent_loop.campaign import Rules
from agent_loop.records import Candidate, Verdict


def best_tuned(trials: Sequence[tuple[Candidate, Verdict]]) -> Candidate | None:
    """The fastest lossless setting of stock's knobs; None where none is faster than stock as released."""
    found = [
        (verdict.effect.point, candidate)
        for candidate, verdict in trials
        if verdict.outcome == "PASSED" and verdict.effect is not None and verdict.effect.point > 1.0
    ]
    return max(found, key=lambda one: (one[0], one[1].id))[1] if found else None


def held_against_tuned(verdict: Verdict, rules: Rules) -> Verdict:
    """A verdict of "measure" that also asks for a gain over tuned stock, where that was measured."""
    over = verdict.over_tuned
    if verdict.outcome != "PASSED" or over is None:
        return verdict
    told = f"{over.point:.3f}x [{over.low:.3f}, {over.high:.3f}] over tuned stock on public rows"
    limit = 1.0 + rules.gain
    if over.point <= limit:
        return msgspec.structs.replace(
            verdict, outcome="NO_GAIN", detail=f"no faster than tuned stock: {told}"
        )
    if over.high <= over.low or over.low <= limit:
        return msgspec.structs.replace(verdict, outcome="INCONCLUSIVE", detail=told)
    return msgspec.structs.replace(verdict, detail=f"{verdict.detail}; {told}")
