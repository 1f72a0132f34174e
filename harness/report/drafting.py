"""Tables of a report about its drafters: acceptance on each set and place, and what detectors say."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report import numbers, text
from harness.report.text import plain
from harness.results import Report, SetAcceptance

Rows = list[dict[str, str]]

ACCEPTANCE_NOTE = (
    "Acceptance length: emitted tokens per verify step over all steps, bonus token included, prefill token "
    "excluded, after the cut at a stop. Per position: of the steps that drafted that far, the share that "
    "accepted it."
)
BY_SET = "Acceptance on each set"
BY_SET_NOTE = (
    "Outputs that repeat themselves are left out, and counted: any drafter is right about them. An output "
    "does when its last 64 tokens are a period of at most 32, or fewer than half of its runs of 4 tokens are "
    "distinct. Survival: share of all verify steps that accepted so many drafts. Conditional: of the steps "
    "that accepted all before, the share that accepted this one too. The mean weighs sets alike."
)
DETECTIONS = "Detectors of broken drafters"
DETECTIONS_NOTE = (
    "For arms whose drafters have weights; `specpilot-harness drafters doctor` runs those that need the "
    "target too."
)
MEAN = "mean of the sets"


def acceptance(report: Report) -> Rows:
    """Acceptance of each arm that made a verify step."""
    return [
        {
            "arm": text.name(arm.name),
            "acceptance length": numbers.length(found.length),
            "mean over responses": numbers.length(found.length_request_mean),
            "verify steps": str(found.verify_steps),
            "drafted": str(found.num_draft_tokens),
            "accepted": str(found.num_accepted_tokens),
            "acceptance rate": "nothing drafted"
            if found.acceptance_rate is None
            else numbers.share(found.acceptance_rate),
            "per position": " ".join(f"{value:.2f}" for value in found.per_position) or "-",
            "steps by accepted tokens": " ".join(map(str, found.histogram)),
        }
        for arm in report.arms
        if (found := arm.acceptance) is not None
    ]


def by_set(report: Report) -> Rows:
    """A row for each arm that drafts and each set, and the mean of several sets."""
    rows: Rows = []
    for arm in report.arms:
        sets = arm.acceptance_by_set or ()
        if not any(found.survival or found.length_with_degenerate != 1.0 for found in sets):
            continue
        name = text.name(arm.name)
        rows += [{"arm": name, **_row(found)} for found in sets]
        if len(sets) > 1:
            rows.append({"arm": name, **_mean(sets)})
    return rows


def detections(report: Report) -> Rows:
    """A row for each arm and detector."""
    return [
        {
            "arm": text.name(one.arm),
            "detector": text.name(one.detector),
            "broken": "could not tell" if one.found is None else "BROKEN" if one.found else "no",
            "detail": plain(one.detail),
        }
        for one in report.detections
    ]


def macro_mean(lengths: Sequence[float | None]) -> float | None:
    """Mean over sets; None where a set has no length."""
    known = [length for length in lengths if length is not None]
    return sum(known) / len(known) if known and len(known) == len(lengths) else None


def _row(found: SetAcceptance) -> dict[str, str]:
    return {
        "set": text.name(found.set_name),
        "acceptance length": numbers.length(found.length),
        "mean over responses": numbers.length(found.length_request_mean),
        "with repetitions": numbers.length(found.length_with_degenerate),
        "repetitions": f"{found.degenerate} of {found.responses}",
        "survival": _shares(found.survival),
        "conditional": _shares(found.conditional),
    }


def _mean(sets: Sequence[SetAcceptance]) -> dict[str, str]:
    return {
        "set": MEAN,
        "acceptance length": numbers.length(macro_mean([one.length for one in sets])),
        "mean over responses": numbers.length(macro_mean([one.length_request_mean for one in sets])),
        "with repetitions": numbers.length(macro_mean([one.length_with_degenerate for one in sets])),
        "repetitions": f"{sum(one.degenerate for one in sets)} of {sum(one.responses for one in sets)}",
        "survival": "-",
        "conditional": "-",
    }


def _shares(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.2f}" for value in values) or "-"
