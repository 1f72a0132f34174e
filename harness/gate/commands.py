"""``specpilot-harness gate``: may this change go in."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.errors import EXIT_OK, EXIT_VIOLATED, UsageError

if TYPE_CHECKING:
    from harness.gate.judge import GateResult

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
WORDS = {True: "ok", False: "FAILED", None: "-"}


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command `gate`."""
    command = commands.add_parser(
        "gate",
        help="fail on a changed token or step count, a lost losslessness, or (dedicated GPU) a slowdown",
        description="Exact on any machine: no time is judged unless both plans say `measure.dedicated_gpu`.",
    )
    add = command.add_argument
    add("baseline", type=Path, metavar="BASELINE", help="a golden file, or the folder of an accepted run")
    add("candidate", type=Path, nargs="?", metavar="REPORT_DIR", help="the run with the change")
    add("--record", action="store_true", help="write BASELINE as the golden of REPORT_DIR")
    add("--margin", type=float, default=0.03, help="slowdown that still passes (default: %(default)s)")
    add("--json", action="store_true", help="print the result as JSON")
    add("--github", action="store_true", help="print failures as annotations of a GitHub workflow")
    command.set_defaults(run=_gate)


def _gate(options: argparse.Namespace) -> int:
    from harness.gate.golden import golden_of, write_golden  # noqa: PLC0415 - commands load what they need
    from harness.gate.judge import run_gate  # noqa: PLC0415
    from harness.oracle.stored import load_run  # noqa: PLC0415

    if options.candidate is None:
        raise UsageError("give the folder of the run: gate BASELINE REPORT_DIR")
    if not 0.0 < options.margin < 1.0:
        raise UsageError(f"--margin must lie between 0 and 1, got {options.margin}")
    if options.record:
        if options.baseline.is_dir():
            raise UsageError(f"--record: {options.baseline} is a folder; name the file to write")
        write_golden(options.baseline, golden_of(load_run(options.candidate)))
        print(f"wrote {options.baseline}")
        return EXIT_OK
    found = run_gate(options.baseline, options.candidate, options.margin)
    _print(found, options)
    return EXIT_OK if found.passed else EXIT_VIOLATED


def _print(found: GateResult, options: argparse.Namespace) -> None:
    import msgspec  # noqa: PLC0415

    from harness.report.text import plain  # noqa: PLC0415

    if options.json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    for check in found.checks:
        print(f"{check.name}: {WORDS[check.passed]}")
        for detail in check.details:
            print(f"  {plain(detail)}")
            if options.github and check.passed is False:
                print(f"::error title=gate {check.name}::{_escaped(plain(detail))}")
    print("gate passed" if found.passed else f"GATE FAILED: {options.candidate}")


def _escaped(text: str) -> str:
    """As workflow commands want it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
