"""``specpilot-harness doctor``: what is here, what works, and the one command that mends each lack."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

from harness.doctor.downloads import DOWNLOADS
from harness.doctor.engines import engine_findings
from harness.doctor.gpus import gpu_findings
from harness.doctor.packages import install_words, is_checkout, package_findings, python_findings
from harness.doctor.records import Diagnosis, Finding, as_json, judge
from harness.doctor.sources import SetState, hub_finding, set_findings
from harness.doctor.space import index_finding, memory_finding, physical_memory, space_findings
from harness.doctor.target import target_findings
from harness.errors import EXIT_OK, EXIT_VIOLATED

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
ROOT = Path(__file__).resolve().parents[2]
MARKS = {"ok": "ok  ", "note": "note", "lack": "LACK"}


class Others(NamedTuple):
    """What other packages of the house tell; each may raise ImportError where its packages are missing."""

    sandboxes: Callable[[], Sequence[tuple[str, str | None]]]  # mechanism, and why it does not work here
    sandbox_mend: str  # one command
    sets: Callable[[Path | None], Sequence[SetState]]  # of the folder of original files


def register(commands: argparse._SubParsersAction[Parser], others: Others) -> None:
    """Add the command `doctor`."""
    command = commands.add_parser(
        "doctor", help="tell what is installed, what works here, and the command that mends each lack"
    )
    add_options(command)
    command.set_defaults(run=lambda options: run(options, others))


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of the command."""
    command.add_argument("--json", action="store_true", help="machine-readable")
    command.epilog = "exit codes: 0 if both commands of the README can run here, 1 if not"


def run(options: argparse.Namespace, others: Others) -> int:
    """Look, print, and give the exit code."""
    found = diagnose(others, ROOT)
    print(as_json(found) if options.json else page(found))
    return EXIT_OK if found.ready else EXIT_VIOLATED


def diagnose(others: Others, root: Path) -> Diagnosis:
    """Everything that can be told of this machine; nothing is changed.

    Args:
        others: what the other packages tell.
        root: folder that holds the packages.
    """
    checkout = is_checkout(root)
    findings = tuple(_findings(others, root, checkout))
    return Diagnosis("doctor/1", findings, judge(findings, checkout), dict(DOWNLOADS))


def _findings(others: Others, root: Path, checkout: bool) -> Iterator[Finding]:
    gpus = tuple(gpu_findings(root))
    count = sum(one.name.startswith("GPU ") for one in gpus)
    yield from python_findings()
    if checkout:
        yield index_finding(root)
    yield from package_findings(root, count, checkout)
    yield from engine_findings(root, count, checkout)
    yield from gpus
    yield from sandbox_findings(others)
    yield from target_findings(root, checkout)
    yield from _data_findings(others, root)
    here = root if checkout else Path.cwd()
    installed = not checkout or (root / ".nox" / "reproduce-cpu").is_dir()
    yield from space_findings(cache_folder(), here, installed)
    yield memory_finding(physical_memory())


def sandbox_findings(others: Others) -> Iterator[Finding]:
    """What can keep a candidate's code in; the loop runs none of it where nothing can."""
    try:
        tried = others.sandboxes()
    except ImportError as error:
        yield Finding("sandbox", "sandbox", "note", f"not tried: it needs {error.name}")
        return
    works = next((name for name, why in tried if why is None), None)
    for name, why in tried:
        if why is None:
            yield Finding("sandbox", name, "ok", "works: a program was started in it")
        elif works is None:
            yield Finding("sandbox", name, "lack", why, others.sandbox_mend)
        else:
            yield Finding("sandbox", name, "note", f"does not work: {why}; {works} is used")


def _data_findings(others: Others, root: Path) -> Iterator[Finding]:
    named = os.environ.get("SPECPILOT_EVALS_DIR")
    folder = Path(named) if named else None
    if folder is not None and not folder.is_dir():
        said = f"{folder} is no folder"
        yield Finding("data", "SPECPILOT_EVALS_DIR", "lack", said, "unset SPECPILOT_EVALS_DIR")
        folder = None
    try:
        states: Iterable[SetState] = others.sets(folder)
    except ImportError as error:
        yield Finding("data", "sets", "lack", f"need {error.name}", install_words(root))
    else:
        yield from set_findings(root, folder, states)
    yield hub_finding(root)


def cache_folder() -> Path:
    """The user cache; a guess where `platformdirs` is missing."""
    try:
        from harness.paths import user_cache  # noqa: PLC0415 - its package may be missing
    except ImportError:
        return Path.home() / ".cache"
    return user_cache()


def page(found: Diagnosis) -> str:
    """The findings for people, in groups, each lack with its mend below it."""
    lines = []
    for group, ones in groupby(found.findings, key=lambda one: one.group):
        lines.append(group)
        for one in ones:
            lines.append(f"  {MARKS[one.state]}  {one.name}: {one.said}")
            if one.mend is not None:
                lines.append(f"          {one.mend}")
    lines.append("commands of the README")
    for command in found.commands:
        if not command.applies:
            lines.append(f"  -     {command.words}: in a clone only; this is an installed package")
        elif command.ready:
            lines.append(f"  ok    {command.words}")
        else:
            lines.append(f"  LACK  {command.words}")
            lines += [f"          because of {reason}" for reason in command.reasons]
    return "\n".join(lines)


def main(others: Others, arguments: Sequence[str] | None = None) -> int:
    """The command by itself, where nothing of the house is installed yet."""
    parser = argparse.ArgumentParser(prog="python -m harness.cli_doctor", description=__doc__.splitlines()[0])
    add_options(parser)
    return run(parser.parse_args(sys.argv[1:] if arguments is None else arguments), others)
