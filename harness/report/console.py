"""The closing words of a run on the terminal: one table, the verdict, where the report lies."""

from __future__ import annotations

from tabulate import tabulate

from harness.paths import RunFolder
from harness.report import tables
from harness.report.text import name, plain
from harness.results import Report


def closing_table(report: Report, folder: RunFolder, *, page: bool = True) -> str:
    """Arm, tokens/s, speedup over `ar` with its interval, acceptance length, verdicts."""
    smoke = "smoke run, behind no claim: " if report.label == "smoke" else ""
    lines = [
        "",
        f"{tables.title(report)}: {smoke}{tables.sizes(report)}",
        tabulate(tables.headline(report), headers="keys", tablefmt="simple", disable_numparse=True),
        "",
    ]
    if not tables.valid(report):
        reasons = (f"  - {plain(reason)}" for reason in report.reasons)
        lines += ["INVALID RUN, no speedup is given:", *reasons]
    lines.append(tables.statement(report))
    failed = [audit for audit in report.audits if audit.passed is False]
    lines += [f"audit failed: {name(audit.name)}: {plain(audit.detail)}" for audit in failed]
    written = f"{folder.report_html} (also .md, .json)" if page else f"{folder.report_md} (also .json)"
    lines += [f"report: {written}; check it: specpilot-harness check {folder.root}"]
    return "\n".join(lines)
