"""``specpilot-harness render``: the pages of a finished run again, with the words of this version."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.errors import EXIT_OK

if TYPE_CHECKING:
    from harness.oracle.stored import StoredRun
    from harness.results import Report

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command `render`."""
    command = commands.add_parser(
        "render",
        help="write report.md and report.html of a finished run again; report.json stays as it is",
        description="What an earlier version did not tell yet is computed from the stored responses.",
    )
    command.add_argument("reports", type=Path, nargs="+", metavar="REPORT_DIR")
    command.set_defaults(run=_render)


def _render(options: argparse.Namespace) -> int:
    from harness.oracle.stored import load_run  # noqa: PLC0415 - commands load only what they need
    from harness.paths import RunFolder  # noqa: PLC0415
    from harness.report.html import render_html  # noqa: PLC0415
    from harness.report.markdown import render_markdown  # noqa: PLC0415
    from harness.storage import write_atomic  # noqa: PLC0415

    for root in options.reports:
        folder, report = RunFolder(root), told_by_responses(load_run(root))
        write_atomic(folder.report_md, render_markdown(report))
        write_atomic(folder.report_html, render_html(report))
        print(f"wrote {folder.report_md} and {folder.report_html}")
    return EXIT_OK


def told_by_responses(run: StoredRun) -> Report:
    """The report, its speedups by set computed from the responses where a valid one does not tell them.

    Raises:
        DataError: the responses do not pair up.
    """
    from msgspec.structs import replace  # noqa: PLC0415

    from harness.stats.summary import summarise_arms  # noqa: PLC0415

    report = run.report
    if report.status != "valid" or all(arm.speedup_by_set is not None for arm in report.arms):
        return report
    again = summarise_arms(run.responses, [line.prompt for line in run.prompts], run.job.plan).arms
    arms = tuple(replace(arm, speedup_by_set=again[arm.name].speedup_by_set) for arm in report.arms)
    return replace(report, arms=arms)
