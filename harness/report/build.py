"""Writes the three faces of a report. The JSON is the record itself; the others are made from it."""

from __future__ import annotations

from harness.codec import canonical_json
from harness.paths import RunFolder
from harness.report.markdown import render_markdown
from harness.results import Report
from harness.storage import write_atomic


def write_report(report: Report, folder: RunFolder, *, page: bool = True) -> None:
    """Write report.md, report.html and, last, report.json: where it lies, the others do too.

    Args:
        report: of the run.
        folder: of the run.
        page: whether report.html is written; ``specpilot-harness render`` makes it later.

    Raises:
        InvalidRun: the folder cannot be written.
    """
    write_atomic(folder.report_md, render_markdown(report))
    if page:
        from harness.report.html import render_html  # noqa: PLC0415 - its pictures take long to import

        write_atomic(folder.report_html, render_html(report))
    write_atomic(folder.report_json, canonical_json(report) + b"\n")
