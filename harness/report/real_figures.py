"""Speeds of two engines on a real model, each with and without drafts: figures that scripts read."""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.errors import UsageError
from harness.results import LOSSLESS, ArmResult, Report

STOCK = "stock-"  # begins the names of arms that are stock with other settings
NO_DRAFTER = "none"  # what an arm of the reference engine says that decodes autoregressively


class RealFigures(NamedTuple):
    """Of one run."""

    tokens_per_second: dict[str, float]  # of "ar", "stock", "candidate" and "own_ar"
    stands_on: dict[str, Any]  # verdict, tokens, machine, plan


def real_figures(report: Report) -> RealFigures:
    """Tokens a second of stock without and with drafts, and of a candidate with and without.

    Args:
        report: of a run with one arm of each kind "ar" and "stock", and of kind "candidate" one without a
            drafter and one or more with: the fastest lossless one counts. Arms named "stock-..." are stock
            with other settings: the fastest counts.

    Raises:
        UsageError: the run is invalid, or its arms are others.
    """
    if report.status != "valid":
        raise UsageError(
            f"report {report.name}: the run is {report.status}, so its times say nothing; run it again"
        )
    others = [arm for arm in report.arms if arm.name.startswith(STOCK)]
    candidates = [arm for arm in report.arms if arm.kind == "candidate" and arm not in others]
    drafting = [arm for arm in candidates if arm.params.get("drafter") != NO_DRAFTER]
    ones = {
        "ar": _only(report, "ar", [arm for arm in report.arms if arm.kind == "ar"]),
        "stock": _only(report, "stock", [arm for arm in report.arms if arm.kind == "stock"]),
        "candidate": _best_candidate(report, drafting),
        "own_ar": _only(report, "own_ar", [arm for arm in candidates if arm not in drafting]),
    }
    ones["stock"] = _fastest([ones["stock"], *others])
    judged, plan = report.losslessness, report.job.plan
    return RealFigures(
        {role: _speed(report, arm) for role, arm in ones.items()},
        {
            "stock_verdict": "not-judged" if judged is None else judged.stock_verdict,
            "self_exact": None if judged is None else judged.self_exact,
            "tokens": 0 if judged is None else judged.tokens,
            "stock_arm": ones["stock"].name,
            "candidate_arm": ones["candidate"].name,
            "requests_in_a_batch": plan.measure.batch,
            "plan": plan.name,
            "plan_hash": report.plan.hash,
        },
    )


def _best_candidate(report: Report, arms: list[ArmResult]) -> ArmResult:
    """The fastest of the lossless ones; where none is, the verdict of the run says so."""
    if not arms:
        raise _other_arms(report, "candidate", 0)
    return _fastest([arm for arm in arms if _lossless(arm)] or arms)


def _lossless(arm: ArmResult) -> bool:
    return arm.losslessness is not None and arm.losslessness.stock_verdict in LOSSLESS


def _fastest(arms: list[ArmResult]) -> ArmResult:
    return max(arms, key=lambda arm: arm.tokens_per_second or 0.0)


def _only(report: Report, role: str, arms: list[ArmResult]) -> ArmResult:
    if len(arms) != 1:
        raise _other_arms(report, role, len(arms))
    return arms[0]


def _other_arms(report: Report, role: str, count: int) -> UsageError:
    return UsageError(
        f"report {report.name}: {count} arms are {role}; it takes one of kind ar, one of kind stock, and "
        f"of kind candidate one with `drafter` = 'none' and one or more with another"
    )


def _speed(report: Report, arm: ArmResult) -> float:
    if arm.tokens_per_second is None:
        raise UsageError(f"report {report.name}: no request of arm {arm.name} succeeded; run it again")
    return round(arm.tokens_per_second, 3)
