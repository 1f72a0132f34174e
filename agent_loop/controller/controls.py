"""Arms with a known answer, measured beside the candidates under names like theirs. Pure.

Stock under another name must not gain; an arm that is surely slower must be seen to be; one that is slower
by a known factor must not surely read another. Else the instrument is broken, and the campaign stops.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent_loop import delayed
from agent_loop.campaign import Loop
from agent_loop.records import Candidate, Hypothesis, Origin, Verdict
from harness.plan import Param

TOLERANCE = 0.03  # of the A/A reading: an interval errs, a gain of this size in it does not come by chance
KNOWN = 0.25  # by which the reading of a delayed arm may differ from what it must be, with its whole interval
SAME, HANDICAP, DELAYED = "same", "handicap", "delayed"


def control_arms(loop: Loop) -> dict[str, Candidate]:
    """The controls of a campaign, by name."""
    found = {}
    stock, controls = loop.stock, loop.plan.controls
    if controls.same:
        found[SAME] = _arm(stock.backend, stock.params, "null")
    if controls.handicap:
        found[HANDICAP] = _arm(stock.backend, controls.handicap, "positive")
    elif controls.delay and loop.job.deployment.device != "remote":  # a server cannot be delayed from here
        found[DELAYED] = _arm(delayed.BACKEND, delayed.params_of(stock, controls.delay), "positive")
    return found


def reading(verdict: Verdict) -> str:
    """What was read of a control: its speedup, whatever else is said of it."""
    effect = verdict.effect
    if effect is None:
        return f"{verdict.outcome}: {verdict.detail}"
    return f"{effect.point:.3f}x [{effect.low:.3f}, {effect.high:.3f}] over stock on public rows"


def check_controls(told: Mapping[str, Verdict], delay: float = 0.0) -> str | None:
    """Why the measurement cannot be believed; None if it can.

    Args:
        told: what was measured of each control.
        delay: of the delayed arm.
    """
    same, handicap, late = told.get(SAME), told.get(HANDICAP), told.get(DELAYED)
    if same is not None and same.effect is None:
        return f"A/A control gave no figure: {reading(same)}"
    if same is not None and same.effect is not None and same.effect.low > 1.0 + TOLERANCE:
        return f"A/A control: stock gains over itself, {reading(same)}"
    for positive in (handicap, late):
        if positive is not None and (positive.effect is None or positive.outcome in ("LOSSY", "CHEAT")):
            return f"positive control: {positive.outcome}: {positive.detail}"
    if handicap is not None and handicap.effect is not None and handicap.effect.high >= 1.0:
        return f"positive control: an arm that is surely slower is not seen to be: {reading(handicap)}"
    if late is not None and late.effect is not None:
        must = 1.0 / (1.0 + delay)
        if late.effect.low > must * (1.0 + KNOWN) or late.effect.high < must * (1.0 - KNOWN):
            return f"positive control: an arm of {must:.2f} times stock's speed reads {reading(late)}"
    return None


def _arm(backend: str, params: Mapping[str, Param], origin: Origin) -> Candidate:
    return Candidate(
        name="control",
        backend=backend,
        params=dict(params),
        hypothesis=Hypothesis(mechanism="control"),
        origin=origin,
        explorer="controller",
    )
