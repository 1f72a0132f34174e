"""``specpilot-harness index``: all reports of a folder over time, on one page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeVar

from harness.errors import EXIT_INVALID, EXIT_OK, UsageError

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command `index`."""
    command = commands.add_parser(
        "index", help="one page of all reports of a folder, grouped by what may be compared"
    )
    command.add_argument("root", type=Path, nargs="?", default=Path("reports"), metavar="REPORTS_DIR")
    command.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar="REPORT_DIR",
        help="say whether two may be compared, and why not",
    )
    command.set_defaults(run=_index)


def _index(options: argparse.Namespace) -> int:
    from harness.oracle.stored import load_run  # noqa: PLC0415 - commands load only what they need
    from harness.report.index import incomparable, read_entries, render_index  # noqa: PLC0415
    from harness.report.text import plain  # noqa: PLC0415
    from harness.storage import write_atomic  # noqa: PLC0415

    if options.compare is not None:
        left, right = (load_run(folder).report for folder in options.compare)
        reasons = incomparable(left, right)
        for reason in reasons:
            print(f"not comparable: {plain(reason)}")
        if not reasons:
            print("comparable: the same target, machine, prompts, sampling and baseline")
        return EXIT_INVALID if reasons else EXIT_OK
    if not options.root.is_dir():
        raise UsageError(f"{options.root} is no folder; give the one that holds the reports")
    entries, broken = read_entries(options.root)
    if not entries:
        raise UsageError(f"{options.root} holds no report that can be read")
    path = options.root / "index.html"
    write_atomic(path, render_index(entries, broken))
    print(f"wrote {path}: {len(entries)} reports")
    for text in broken:
        print(f"not read: {plain(text)}")
    return EXIT_OK
