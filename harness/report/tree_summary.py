"""What draft trees do beside the chain of the same drafter, for scripts: derived from full reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import UsageError
from harness.report.drafting import macro_mean
from harness.report.summary import EMBEDDED, sets_of
from harness.results import ArmResult, Report, StockVerdict

VERDICTS: tuple[StockVerdict, ...] = ("exact", "near-tie", "not-judged", "violated")  # the last one wins


def tree_summary(
    dense: Report,
    hybrid: Report | None,
    exact: Sequence[Report],
    beta: float | None,
    two_level: Report | None = None,
) -> dict[str, Any]:
    """The best tree beside its own chain, on each kind of target.

    Acceptance lengths weigh the public sets alike and leave out outputs that repeat themselves; `gain` is the
    mean over the sets of the tree's speed over its chain's.

    Args:
        dense: of a run with chains and trees of the same drafters.
        hybrid: the same on a hybrid target; None where it was not run.
        exact: of runs that captured logits, for `self_exact`; they need no other speed.
        beta: measured agreement of the first level of the two-level arm; None where it was not measured.
        two_level: of a run with two levels beside the chain of the same drafter; None where it was not run.

    Raises:
        UsageError: a report has no tree with a chain beside it, or does not tell its sets; `two_level` has no
            two levels with a chain beside them.
    """
    reports = [report for report in (dense, hybrid, two_level, *exact) if report is not None]
    judged = [report.losslessness for report in reports]
    verdicts = ["not-judged" if one is None else one.stock_verdict for one in judged]
    told = {one.self_exact for one in judged if one is not None} - {None}
    return {
        "dense": _pairs(dense),
        "hybrid": None if hybrid is None else _pairs(hybrid),
        "two_level": {"beta": beta, "gain": None if two_level is None else _two_level(two_level)},
        "stock_verdict": max(verdicts, key=VERDICTS.index),
        "self_exact": None if not told else told == {True},
        "plan_hashes": [report.plan.hash for report in reports],
    }


def _pairs(report: Report) -> dict[str, Any]:
    """Of the drafter whose tree gains most over its chain, and of every tree."""
    public = [drawn.name for drawn in report.sets if drawn.source != EMBEDDED]
    chains = {
        _drafter(arm): arm for arm in report.arms if _drafts(arm) and not _has(arm, "tree", "two_level")
    }
    trees = [
        _tree(arm, chains[_drafter(arm)], public)
        for arm in report.arms
        if _has(arm, "tree") and not _has(arm, "two_level") and _drafter(arm) in chains
    ]
    if not trees:
        raise UsageError(
            f"report {report.name}: no arm has a `tree` beside an arm with the chain of the same drafter"
        )
    best = max(trees, key=lambda tree: (tree["gain"] is not None, tree["gain"]))
    return {
        "drafter": best["drafter"],
        "chain": _told(chains[best["drafter"]], public),
        "tree": best,
        "gain": best["gain"],
        "chains": {name: _told(arm, public) for name, arm in chains.items()},
        "trees": trees,
    }


def _tree(arm: ArmResult, chain: ArmResult, sets: Sequence[str]) -> dict[str, Any]:
    return {
        **_told(arm, sets),
        "drafter": _drafter(arm),
        "budget": arm.params["tree"],
        "calibrated": _has(arm, "tree_figures"),
        "gain": _gain(arm, chain, sets),
    }


def _told(arm: ArmResult, sets: Sequence[str]) -> dict[str, Any]:
    lengths = [one.length for one in sets_of(arm) if one.set_name in sets]
    return {"arm": arm.name, "tau": macro_mean(lengths), "tokens_per_s": arm.tokens_per_second}


def _two_level(report: Report) -> float | None:
    """Speed of the first arm with two levels over its drafter's own chain; None in a run without speeds."""
    public = [drawn.name for drawn in report.sets if drawn.source != EMBEDDED]
    for arm in report.arms:
        if not _has(arm, "two_level"):
            continue
        for chain in report.arms:
            if _drafter(chain) == _drafter(arm) and not _has(chain, "tree", "two_level"):
                return _gain(arm, chain, public)
    raise UsageError(
        f"report {report.name}: no arm has `two_level` beside an arm with the chain of the same drafter"
    )


def _gain(arm: ArmResult, other: ArmResult, sets: Sequence[str]) -> float | None:
    """Mean over the sets of speed over speed; None in a run without speeds."""
    mine, its = (
        {one.set_name: one.speedup.point for one in found.speedup_by_set or () if one.set_name in sets}
        for found in (arm, other)
    )
    if set(mine) != set(sets) or set(its) != set(sets):
        return None
    return macro_mean([mine[name] / its[name] for name in sets])


def _drafter(arm: ArmResult) -> str:
    return str(arm.params.get("drafter", "none"))


def _drafts(arm: ArmResult) -> bool:
    return arm.kind in {"stock", "candidate"} and _drafter(arm) != "none"


def _has(arm: ArmResult, *params: str) -> bool:
    return any(name in arm.params for name in params)


def beta_of(figures: Mapping[str, Any], where: str) -> float:
    """Agreement of a first level, from the file that `drafters figures` writes.

    Raises:
        UsageError: the file holds none.
    """
    measured = figures.get("measured")
    found = measured.get("beta") if isinstance(measured, Mapping) else None
    if not isinstance(found, int | float):
        raise UsageError(f"{where} holds no `beta` of a first level; give the file of `drafters figures`")
    return float(found)
