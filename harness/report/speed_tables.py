"""Tables of times: speedup in other words, by category and set, latency, load. An invalid run has none."""

from __future__ import annotations

from harness.report import numbers, text
from harness.report.tables import Row, Rows, baseline, valid
from harness.report.text import plain
from harness.results import ArmResult, Report

LOAD_NOTE = (
    "Throughput: emitted tokens, counted by ids, over the wall time of whole request sets. An inter-chunk "
    "gap may hold many tokens. Late: failed, or beyond a limit."
)


def speedups(report: Report) -> Rows:
    """The speedup in other words, and how many requests it rests on."""
    if not valid(report):
        return []
    return [
        {
            "arm": text.name(arm.name),
            "kind": arm.kind,
            "typical prompt (geometric mean)": numbers.ratio(arm.speedup_geomean),
            "decode only": numbers.ratio(arm.speedup_decode),
            f"prompts slower than {baseline(report)}": "-"
            if arm.verdict == "baseline"
            else numbers.share(arm.slower_share),
            "failed": f"{arm.failed} of {arm.requests}",
            "tokens": str(arm.tokens),
        }
        for arm in report.arms
    ]


def speedup_note(report: Report) -> str:
    """What the speedup is and how its interval was made."""
    name = baseline(report)
    method = next(
        (arm.speedup.method for arm in report.arms if arm.speedup and arm.verdict != "baseline"), None
    )
    note = f"Speedup: summed time of {name} over summed time of the arm, same prompts, launches and blocks."
    return f"{note} Interval: {plain(method)}." if method else note


def categories(report: Report) -> Rows:
    """The speedup on the prompts of each category."""
    if not valid(report):
        return []
    return [
        {
            "arm": text.name(arm.name),
            "category": text.name(item.category),
            "prompts": str(item.prompts),
            f"speedup over {baseline(report)}": numbers.ratio(item.speedup),
        }
        for arm in report.arms
        for item in arm.by_category
    ]


def by_set(report: Report) -> Rows:
    """The speedup on the prompts of each set, where a report tells it and has more than one."""
    if not valid(report) or len(report.sets) < 2:
        return []
    return [
        {
            "arm": text.name(arm.name),
            "set": text.name(item.set_name),
            "prompts": str(item.prompts),
            f"speedup over {baseline(report)}": numbers.ratio(item.speedup),
        }
        for arm in report.arms
        for item in arm.speedup_by_set or ()
    ]


def latency(report: Report) -> Rows:
    """Medians and 90 % quantiles over responses, in ms."""
    return [_latency(arm) for arm in report.arms if arm.latency is not None] if valid(report) else []


def _latency(arm: ArmResult) -> Row:
    found = arm.latency
    assert found is not None  # noqa: S101
    return {
        "arm": text.name(arm.name),
        "TTFT median, ms": numbers.milliseconds(found.ttft_median),
        "TTFT p90, ms": numbers.milliseconds(found.ttft_p90),
        "TPOT median, ms": numbers.milliseconds(found.tpot_median),
        "TPOT p90, ms": numbers.milliseconds(found.tpot_p90),
        "end to end median, ms": numbers.milliseconds(found.e2e_median),
        "end to end p90, ms": numbers.milliseconds(found.e2e_p90),
    }


def loads(report: Report) -> Rows:
    """Arms that servers run, under load; empty for others."""
    if not valid(report):
        return []
    return [
        {
            "arm": text.name(arm.name),
            "output tokens/s": numbers.rate(arm.load.output_tokens_per_second),
            "requests/s": numbers.rate(arm.load.requests_per_second),
            "goodput, requests/s": "no limits given"
            if arm.load.goodput is None
            else numbers.rate(arm.load.goodput),
            "late": "-" if arm.load.late is None else str(arm.load.late),
            "failed": str(arm.load.failed),
            "refused first": str(arm.load.refusals),
            "inter-chunk median, ms": numbers.milliseconds(arm.load.icl_median),
            "inter-chunk p99, ms": numbers.milliseconds(arm.load.icl_p99),
            "chunks": str(arm.load.chunks),
        }
        for arm in report.arms
        if arm.load is not None
    ]
