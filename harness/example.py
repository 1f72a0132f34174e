"""The statistics from a notebook: what the stored responses of a run say, without the command line.

python -m harness.example reports/2026-12-02-reproduce-cpu
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from harness.oracle.stored import load_run
from harness.stats.summary import summarise_arms


def table(folder: Path) -> str:
    """Speed of every arm of a finished run, derived from its responses again.

    Args:
        folder: of the run.

    Raises:
        DataError: a file of it cannot be read.
    """
    run = load_run(folder)
    speeds = summarise_arms(run.responses, [line.prompt for line in run.prompts], run.job.plan).arms
    rows = []
    for name, speed in speeds.items():
        interval = speed.speedup
        told = "-" if interval is None else f"{interval.point:.2f}x [{interval.low:.2f}, {interval.high:.2f}]"
        drafted = speed.acceptance
        length = "-" if drafted is None else f"{drafted.length:.3f}"
        rows.append((name, speed.requests, told, length))
    return tabulate(rows, headers=("arm", "requests", "speedup", "acceptance length"), disable_numparse=True)


def main(arguments: Sequence[str]) -> None:
    """Print the table of one run."""
    (folder,) = arguments
    print(table(Path(folder)))


if __name__ == "__main__":
    main(sys.argv[1:])
