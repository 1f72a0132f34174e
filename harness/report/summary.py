"""The figures of trained drafters that scripts read, derived from a full report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import UsageError
from harness.report.drafting import macro_mean
from harness.results import ArmResult, Report, SetAcceptance

EMBEDDED = "embedded"  # source of the set that lies in the package: told beside the mean, not in it


def drafter_summary(report: Report) -> dict[str, Any]:
    """Acceptance lengths of the drafters that have weights, and the verdict they stand under.

    `tau` leaves out outputs that repeat themselves; `tau_with_degenerate` does not. The mean weighs the
    public sets alike.

    Args:
        report: of a run with at least one arm whose backend names a `checkpoint`.

    Raises:
        UsageError: there is no such arm, two have the same drafter, they draft different numbers of
            tokens, or the report does not tell acceptance on each set.
    """
    arms = trained_arms(report)
    if not arms:
        raise UsageError(f"report {report.name}: no arm has a drafter with weights; nothing to summarise")
    longest = {name: max(len(one.survival) for one in sets_of(arm)) for name, arm in arms.items()}
    if len(set(longest.values())) != 1:
        raise UsageError(f"report {report.name}: arms draft different numbers of tokens, {longest}")
    public = [drawn.name for drawn in report.sets if drawn.source != EMBEDDED]
    other = [drawn.name for drawn in report.sets if drawn.source == EMBEDDED]
    judged = report.losslessness
    return {
        "tau": {name: _lengths(arm, public, "length") for name, arm in arms.items()},
        "tau_with_degenerate": {
            name: _lengths(arm, public, "length_with_degenerate") for name, arm in arms.items()
        },
        "tau_embedded": {
            name: {one.set_name: one.length for one in sets_of(arm) if one.set_name in other}
            for name, arm in arms.items()
        },
        "degenerate": {
            name: {one.set_name: one.degenerate for one in sets_of(arm)} for name, arm in arms.items()
        },
        "prompts": {drawn.name: drawn.drawn for drawn in report.sets},
        "drafts": next(iter(longest.values())),
        "max_tokens": report.job.plan.sampling.max_tokens,
        "tokens": 0 if judged is None else judged.tokens,
        "stock_verdict": "not-judged" if judged is None else judged.stock_verdict,
        "self_exact": None if judged is None else judged.self_exact,
        "plan_hash": report.plan.hash,
    }


def trained_arms(report: Report) -> dict[str, ArmResult]:
    """Arms with a trained drafter, by the drafter's name, in the order of the plan.

    Raises:
        UsageError: two have the same drafter.
    """
    found: dict[str, ArmResult] = {}
    arms = {arm.name: arm for arm in report.arms}
    for told in report.backends.values():
        if not isinstance(told, Mapping):
            continue
        drafters = told.get("drafters") or {}
        for arm in told.get("checkpoints") or {}:
            name = str(drafters.get(arm, arm))
            if name in found:
                raise UsageError(
                    f"report {report.name}: two arms have the drafter {name}; summarise one run of each"
                )
            found[name] = arms[arm]
    order = list(arms)
    return dict(sorted(found.items(), key=lambda item: order.index(item[1].name)))


def sets_of(arm: ArmResult) -> Sequence[SetAcceptance]:
    """Acceptance of an arm on each set.

    Raises:
        UsageError: an old report does not tell it.
    """
    if not arm.acceptance_by_set:
        raise UsageError(
            f"arm {arm.name}: its report does not tell acceptance on each set; run the plan again"
        )
    return arm.acceptance_by_set


def _lengths(arm: ArmResult, sets: Sequence[str], field: str) -> dict[str, float | None]:
    lengths = {one.set_name: getattr(one, field) for one in sets_of(arm) if one.set_name in sets}
    return {**lengths, "mean": macro_mean(list(lengths.values()))}
