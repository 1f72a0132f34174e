"""Writes the three faces of a report. The JSON is the record itself; the others are made from it."""

from __future__ import annotations

from harness.codec import canonical_json
from harness.paths import RunFolder
from harness.report.html import render_html
from harness.report.markdown import render_markdown
from harness.results import Report
from harness.storage import write_atomic


def write_report(report: Report, folder: RunFolder) -> None:
    """Write report.md, report.html and, last, report.json: where it lies, the others do too.

    Raises:
        InvalidRun: the folder cannot be written.
    """
    write_atomic(folder.report_md, render_markdown(report))
    write_atomic(folder.report_html, render_html(report))
    write_atomic(folder.report_json, canonical_json(report) + b"\n")
