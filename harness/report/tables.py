"""What a report says, as tables of finished strings: the one source of all its faces.

A cell is plain text of others or a number written by `numbers`; the faces only escape and lay out.
An invalid run has no cell with a speed in it, whatever its record carries.
"""

from __future__ import annotations

from harness.report import numbers, text
from harness.report.text import plain
from harness.results import ArmResult, Report
from harness.speculation import mechanism

Row = dict[str, str]
Rows = list[Row]
NO_SPEED = "No speed is given: the run is invalid."


def sizes(report: Report) -> str:
    """What the run consisted of, in a few words."""
    plan = report.job.plan
    prompts = sum(summary.drawn for summary in report.sets)
    words = (
        f"{prompts} prompts of at most {plan.sampling.max_tokens} tokens, {plan.measure.launches} launches, "
        f"{plan.measure.blocks} blocks"
    )
    return f"{words}, batch {plan.measure.batch}" if plan.measure.batch > 1 else words


def valid(report: Report) -> bool:
    """Whether speeds may be shown."""
    return report.status == "valid"


def baseline(report: Report) -> str:
    """Name of the arm every speedup is over."""
    return text.name(report.job.plan.baseline.name)


def is_mechanism(report: Report, arm: ArmResult) -> bool:
    """Whether an arm is neither the baseline nor a calibration arm: its speedup is of interest by itself."""
    return arm.name != report.job.plan.baseline.name and arm.kind in ("stock", "candidate")


def title(report: Report) -> str:
    """Name of the report."""
    return text.name(report.name)


def statement(report: Report) -> str:
    """The verdict in one sentence."""
    found = report.losslessness
    return "Not judged: the oracle did not run." if found is None else plain(found.statement)


def headline(report: Report) -> Rows:
    """A row for each arm: mechanism, speed, speedup, acceptance length, both verdicts."""
    confidence = numbers.percent(report.job.plan.stats.confidence)
    rows = []
    for arm in report.arms:
        row = {"arm": text.name(arm.name), "mechanism": text.name(mechanism(report, arm.name))}
        if valid(report):
            row["tokens/s"] = numbers.rate(arm.tokens_per_second)
            row[f"speedup over {baseline(report)} [{confidence}]"] = numbers.ratio(arm.speedup)
        row["acceptance length"] = numbers.length(arm.acceptance_length)
        if valid(report):
            row["verdict"] = numbers.speed_verdict(arm)
        row["stock verdict"] = numbers.stock_verdict(arm)
        rows.append(row)
    return rows
