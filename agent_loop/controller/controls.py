"""Arms with a known answer, measured beside the candidates under names like theirs. Pure.

Stock under another name must not gain; an arm that is surely slower must be seen to be. Where one of
them reads otherwise the instrument is broken, and the campaign stops.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent_loop.campaign import Loop
from agent_loop.records import Candidate, Hypothesis, Origin, Verdict
from harness.plan import Param

TOLERANCE = 0.03  # of the A/A reading: an interval errs, a gain of this size in it does not come by chance
SAME, HANDICAP = "same", "handicap"


def control_arms(loop: Loop) -> dict[str, Candidate]:
    """The controls of a campaign, by name."""
    found = {}
    stock, controls = loop.stock, loop.plan.controls
    if controls.same:
        found[SAME] = _arm(stock.backend, stock.params, "null")
    if controls.handicap:
        found[HANDICAP] = _arm(stock.backend, controls.handicap, "positive")
    return found


def check_controls(told: Mapping[str, Verdict]) -> str | None:
    """Why the measurement cannot be believed; None if it can."""
    same, handicap = told.get(SAME), told.get(HANDICAP)
    if same is not None and same.effect is None:
        return f"A/A control gave no figure: {same.outcome}: {same.detail}"
    if same is not None and same.effect is not None and same.effect.low > 1.0 + TOLERANCE:
        return f"A/A control: stock gains over itself, {same.detail}"
    if handicap is not None and handicap.outcome in ("LOSSY", "CHEAT"):
        return f"positive control: {handicap.outcome}: {handicap.detail}"
    if handicap is not None and (handicap.effect is None or handicap.effect.high >= 1.0):
        return f"positive control: an arm that is surely slower is not seen to be: {handicap.detail}"
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
