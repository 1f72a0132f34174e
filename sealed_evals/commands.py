"""``specpilot-harness evals``: list, lint, verify and seal evaluation sets."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from tabulate import tabulate

from harness import paths
from harness.codec import Record, canonical_json, from_json
from harness.errors import EXIT_INVALID, EXIT_OK, EXIT_VIOLATED, UsageError
from harness.plan import SetSpec
from harness.storage import write_atomic
from sealed_evals.campaign_commands import register_campaign
from sealed_evals.catalogue import Catalogue, load_catalogue
from sealed_evals.lint import lint
from sealed_evals.seal import Difference, SealFile, check_seal, make_seal
from sealed_evals.sources import Found, find, own_file, read
from sealed_evals.survey import SetStatus, survey

SHOWN = 5  # findings of one kind in a table

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def register(subparsers: argparse._SubParsersAction[Parser]) -> None:
    """Add the command `evals` to a command line; each sub-command sets `run`."""
    evals = subparsers.add_parser("evals", help="list, lint, verify and seal evaluation sets")
    commands = evals.add_subparsers(metavar="ACTION", required=True)

    listing = commands.add_parser("list", help="the pinned sets, and where each is found here")
    listing.set_defaults(run=_list)

    linting = commands.add_parser("lint", help="look for faults in a pinned set or in a file")
    linting.add_argument("set", metavar="NAME|FILE", help="a pinned set, or a JSONL or JSON file of your own")
    _add_field(linting)
    linting.set_defaults(run=_lint)

    verifying = commands.add_parser(
        "verify", help="check sets against their pins; a file, report or campaign against its seal"
    )
    verifying.add_argument(
        "names", nargs="*", metavar="NAME", help="pinned sets (default: all that are here)"
    )
    verifying.add_argument("--hub", action="store_true", help="ask the hub for sets that are not here")
    verifying.add_argument("--seal", type=Path, help="a seal; the one NAME is then the file to check")
    verifying.add_argument("--report", type=Path, metavar="DIR", help="check which prompts a report is on")
    verifying.add_argument(
        "--campaign", type=Path, metavar="DIR", help="check a campaign, or a report on one of its shards"
    )
    verifying.set_defaults(run=_verify)

    sealing = commands.add_parser("seal", help="write a seal of a pinned set or of a file")
    sealing.add_argument("set", metavar="NAME|FILE", help="a pinned set, or a JSONL or JSON file of your own")
    sealing.add_argument("--out", type=Path, required=True, help="file to write the seal to")
    _add_field(sealing)
    sealing.set_defaults(run=_seal)

    register_campaign(commands)
    for command in (listing, linting, verifying, sealing):
        command.add_argument("--evals-dir", type=Path, help="folder with the original evaluation files")
        command.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_field(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--field", default="prompt", help="field of the prompt in a file of your own")


def _list(options: argparse.Namespace) -> int:
    catalogue = load_catalogue()
    found = survey(catalogue, (), _folder(options), hub=False)
    if options.json:
        _print_json(catalogue.sets)
        return EXIT_OK
    rows = [
        (entry.name, entry.title, entry.rows, entry.licence, status.source or f"- ({status.status})")
        for entry, status in zip(catalogue.sets, found, strict=True)
    ]
    print(tabulate(rows, headers=("set", "title", "rows", "licence", "source")))
    return EXIT_OK


def _lint(options: argparse.Namespace) -> int:
    _, found = _find(options, load_catalogue())
    findings = lint(found.data, found.layout, found.where)
    if options.json:
        _print_json(findings)
    elif findings:
        table = [(finding.severity, finding.rule, finding.row, finding.message) for finding in findings]
        _print_table(table, ("severity", "rule", "row", "finding"), kind=1)
    else:
        print(f"{found.where}: nothing found")
    return EXIT_VIOLATED if any(finding.severity == "error" for finding in findings) else EXIT_OK


def _verify(options: argparse.Namespace) -> int:
    if options.seal is not None:
        return _verify_seal(options)
    if options.report is not None or options.campaign is not None:
        from sealed_evals.campaign_commands import verify_sealed  # noqa: PLC0415

        return verify_sealed(options)
    statuses = survey(
        load_catalogue(), options.names, _folder(options), hub=options.hub or bool(options.names)
    )
    if options.json:
        _print_json(statuses)
    else:
        rows = [(s.name, s.status, s.source, s.rows, s.prompts_sha256) for s in statuses]
        print(tabulate(rows, headers=("set", "status", "source", "rows", "prompts sha256")))
        for status in statuses:
            if status.message:
                print(status.message)
    return EXIT_INVALID if _is_bad(statuses, options.names) else EXIT_OK


def _is_bad(statuses: Sequence[SetStatus], named: Sequence[str]) -> bool:
    """A set that is not here is bad news only if it was asked for by name."""
    return any(s.status == "mismatch" or (s.status == "missing" and s.name in named) for s in statuses)


def _verify_seal(options: argparse.Namespace) -> int:
    if len(options.names) != 1:
        raise UsageError("verify --seal wants exactly one file: evals verify --seal SEAL.json FILE")
    path = Path(options.names[0])
    seal = from_json(read(options.seal), SealFile, str(options.seal))
    differences: tuple[Difference, ...] = check_seal(seal, read(path), str(path))
    if options.json:
        _print_json(differences)
    elif differences:
        table = [(difference.kind, difference.row, difference.message) for difference in differences]
        _print_table(table, ("difference", "row", "what"), kind=0)
    else:
        print(f"{path}: {seal.count} rows as sealed, root {seal.merkle_root}")
    return EXIT_INVALID if differences else EXIT_OK


def _seal(options: argparse.Namespace) -> int:
    name, found = _find(options, load_catalogue())
    seal = make_seal(name, found.data, found.layout, found.where)
    write_atomic(options.out, canonical_json(seal) + b"\n")
    if options.json:
        _print_json(seal)
    else:
        print(f"{options.out}: {seal.count} rows sealed, root {seal.merkle_root}")
    return EXIT_OK


def _find(options: argparse.Namespace, catalogue: Catalogue) -> tuple[str, Found]:
    """Name and bytes of a pinned set or of a file; the name of a pinned set wins."""
    path = Path(options.set)
    if options.set not in catalogue.names and (path.is_file() or path.suffix):
        spec = SetSpec(name=path.name, count=1, path=str(path), field=options.field)
        return path.name, own_file(spec, catalogue.names)
    entry = catalogue.entry(options.set)
    return entry.name, find(entry, _folder(options), None, hub=True)


def _folder(options: argparse.Namespace) -> Path | None:
    folder: Path | None = options.evals_dir
    return folder if folder is not None else paths.evals_dir()


def _print_table(rows: Sequence[tuple[str | int | None, ...]], headers: Sequence[str], kind: int) -> None:
    """Print at most `SHOWN` rows of each kind (the column of that index), and how many more there are."""
    counts: Counter[str | int | None] = Counter()
    table: list[tuple[str | int | None, ...]] = []
    for row in rows:
        counts[row[kind]] += 1
        if counts[row[kind]] <= SHOWN:
            table.append(row)
    print(tabulate(table, headers=headers))
    for name, count in counts.items():
        if count > SHOWN:
            print(f"... and {count - SHOWN} more of {name}; --json prints all")


def _print_json(value: Record | Sequence[Record]) -> None:
    print(canonical_json(value).decode())
