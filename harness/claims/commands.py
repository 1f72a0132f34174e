"""``specpilot-harness verify-claim``: hold a claim against a report, or against two servers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.errors import EXIT_INVALID, EXIT_OK, EXIT_VIOLATED, UsageError

if TYPE_CHECKING:
    from harness.plan import Job

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Measure = Callable[["Job", Path, argparse.Namespace], int]

CODES = {
    "confirmed": EXIT_OK,
    "refuted": EXIT_VIOLATED,
    "not comparable": EXIT_INVALID,
    "inconclusive": EXIT_INVALID,
}


def register(commands: argparse._SubParsersAction[Parser], measure: Measure) -> None:
    """Add the command `verify-claim`.

    Args:
        commands: of the command line.
        measure: runs a job into a folder with the options that every run has; gives its exit code.
    """
    command = commands.add_parser(
        "verify-claim",
        help="say whether a claim is confirmed, refuted, not comparable or inconclusive",
        epilog="exit codes: 0 confirmed, 1 refuted, 2 not comparable or inconclusive, 3 usage",
    )
    add = command.add_argument
    add("claim", nargs="?", metavar="SOURCE/NAME|FILE.toml#NAME", help="which claim (--list shows them)")
    add("--list", action="store_true", help="list the claims that come with the package")
    add("--report", type=Path, metavar="DIR", help="a finished run")
    add("--stock", metavar="URL", help="plain server: its output defines correctness, its time is divided")
    add("--candidate", metavar="URL", help="server that is said to be faster")
    add("--ar", metavar="URL", help="autoregressive server, where --stock itself speculates")
    add("--arm", metavar="NAME", help="arm of the report (default: the one that fits)")
    add("--gpu", metavar="NAME", help="GPU of servers elsewhere, which they do not tell")
    add("--assume", action="append", default=[], metavar="FIELD=VALUE", help="what the claim leaves out")
    add("--margin", type=float, help="relative difference that is not material (default: the claim's, 0.02)")
    add("--set", action="append", default=[], metavar="NAME", help="only the figures on this set")
    add("--count", type=int, default=24, help="prompts a set, with servers (default: %(default)s)")
    add("--launches", type=int, default=3, help="with servers (default: %(default)s)")
    add("--blocks", type=int, default=5, help="with servers (default: %(default)s)")
    add("--model", metavar="FOLDER|NAME@REVISION", help="tokenizer, with servers (default: ask stock)")
    add(
        "--prompts", type=Path, metavar="FILE", help="JSONL file that holds the claim's one set, with servers"
    )
    add("--field", default="prompt", help="field of the file with the prompt (default: %(default)s)")
    add("--calibration-set", default="embedded", help="set for stock's own noise (default: %(default)s)")
    add("--evals-dir", type=Path, help="folder with the original evaluation files")
    add("--out", type=Path, default=Path("reports/verify-claim"), help="run folders, with servers")
    add("--json", action="store_true", help="print the verification as JSON")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--resume", action="store_true", help="continue unfinished runs")
    which.add_argument("--overwrite", action="store_true", help="remove what earlier runs left in --out")
    command.set_defaults(run=lambda options: _verify_claim(options, measure))


def _verify_claim(options: argparse.Namespace, measure: Measure) -> int:
    from harness.claims import records, render, trial  # noqa: PLC0415 - commands load only what they need
    from harness.claims.decide import as_plain  # noqa: PLC0415

    if options.list:
        print(render.listing({name: records.load_file(name) for name in records.built_in()}))
        return EXIT_OK
    claim = trial.chosen_claim(options)
    if options.report is not None:
        found = [trial.on_report(claim, options.report, options)]
    elif options.stock and options.candidate:
        found = trial.on_servers(claim, options, measure)
    else:
        raise UsageError("give --report DIR, or --stock URL and --candidate URL")
    for one in found:
        print(json.dumps(as_plain(one), indent=2) if options.json else render.in_words(one))
    codes = [CODES[one.verdict] for one in found]
    return EXIT_VIOLATED if EXIT_VIOLATED in codes else max(codes)
