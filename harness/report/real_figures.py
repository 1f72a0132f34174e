"""Speeds of two engines on a real model, each with and without drafts: figures that scripts read."""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.errors import UsageError
from harness.results import ArmResult, Report

STOCK = "stock-"  # begins the names of arms that are stock with other settings
NO_DRAFTER = "none"  # what an arm of the reference engine says that decodes autoregressively


class RealFigures(NamedTuple):
    """Of one run."""

    tokens_per_second: dict[str, float]  # of "ar", "stock", "candidate" and "own_ar"
    stands_on: dict[str, Any]  # verdict, tokens, machine, plan


def real_figures(report: Report) -> RealFigures:
    """Tokens a second of stock without and with drafts, and of a candidate with and without.

    Args:
        report: of a run with one arm of each kind "ar" and "stock", and two of kind "candidate", of which
            one has no drafter. Arms named "stock-..." are stock with other settings: the fastest counts.

    Raises:
        UsageError: the run is invalid, or its arms are others.
    """
    if report.status != "valid":
        raise UsageError(
            f"report {report.name}: the run is {report.status}, so its times say nothing; run it again"
        )
    others = [arm for arm in report.arms if arm.name.startswith(STOCK)]
    candidates = [arm for arm in report.arms if arm.kind == "candidate" and arm not in others]
    places = {
        "ar": [arm for arm in report.arms if arm.kind == "ar"],
        "stock": [arm for arm in report.arms if arm.kind == "stock"],
        "candidate": [arm for arm in candidates if arm.params.get("drafter") != NO_DRAFTER],
        "own_ar": [arm for arm in candidates if arm.params.get("drafter") == NO_DRAFTER],
    }
    speeds = {role: _speed(report.name, role, arms) for role, arms in places.items()}
    best = max((*places["stock"], *others), key=lambda arm: arm.tokens_per_second or 0.0)
    speeds["stock"] = _speed(report.name, "stock", [best])
    judged, plan = report.losslessness, report.job.plan
    return RealFigures(
        speeds,
        {
            "stock_verdict": "not-judged" if judged is None else judged.stock_verdict,
            "self_exact": None if judged is None else judged.self_exact,
            "tokens": 0 if judged is None else judged.tokens,
            "stock_arm": best.name,
            "requests_in_a_batch": plan.measure.batch,
            "plan": plan.name,
            "plan_hash": report.plan.hash,
        },
    )


def _speed(report: str, role: str, arms: list[ArmResult]) -> float:
    if len(arms) != 1:
        raise UsageError(
            f"report {report}: {len(arms)} arms are {role}; it takes one of kind ar, one of kind stock, and "
            f"of kind candidate one with a drafter and one with `drafter` = 'none'"
        )
    if arms[0].tokens_per_second is None:
        raise UsageError(f"report {report}: no request of arm {arms[0].name} succeeded; run it again")
    return round(arms[0].tokens_per_second, 3)
