"""``specpilot-harness loop``: run or resume a campaign, look at it, at the memory and at the ceiling."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agent_loop.cost_model.commands import add_ceiling
from agent_loop.sandbox import commands as sandbox
from harness import paths
from harness.errors import EXIT_OK, EXIT_VIOLATED, InvalidRun, UsageError

if TYPE_CHECKING:
    from agent_loop.assembling import Folders
    from agent_loop.campaign import Loop
    from agent_loop.controller.database import Database
    from agent_loop.cost_model.ceiling import CeilingModel
    from agent_loop.executors.protocol import Executor
    from agent_loop.records import Candidate

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command `loop`; each sub-command sets `run`."""
    loop = commands.add_parser(
        "loop", help="search for a faster lossless deployment, judged on unseen prompts"
    )
    actions = loop.add_subparsers(metavar="ACTION", required=True)
    for name, text in (
        ("run", "run a campaign; an unfinished one is continued"),
        ("resume", "continue a campaign that was interrupted or killed"),
    ):
        command = actions.add_parser(name, help=text)
        command.add_argument(
            "campaign", type=Path, metavar="LOOP.toml", help="a file, or the name of a built-in campaign"
        )
        command.add_argument("--out", type=Path, metavar="DIR", help="folder (default: reports/<name>)")
        command.add_argument(
            "--memory", type=Path, metavar="FILE", help="mechanism records (default: user's)"
        )
        command.add_argument("--controller", type=Path, metavar="DIR", help="folder of keys and evidence")
        command.add_argument("--evals-dir", type=Path, help="folder with the original evaluation files")
        command.add_argument(
            "--key-file", type=Path, metavar="FILE", help="API key of explorers that ask a model"
        )
        command.add_argument(
            "--ceiling", type=Path, metavar="FILE", help="of `loop ceiling --out`; else measured first"
        )
        command.add_argument(
            "--ray", metavar="ADDRESS", help="measure on the bench hosts of this Ray cluster (or: auto)"
        )
        command.add_argument("--ray-gpus", type=int, default=0, metavar="N", help="GPUs of a trial there")
        command.add_argument(
            "--plant",
            type=Path,
            action="append",
            default=[],
            metavar="CANDIDATE.json",
            help="tried first; again for more",
        )
        command.set_defaults(run=_run, resume=name == "resume")
    status = actions.add_parser("status", help="where a campaign stands")
    status.add_argument("folder", type=Path, metavar="DIR")
    status.set_defaults(run=_status)
    review = actions.add_parser("review", help="verdict cards of a campaign, and who was caught at what")
    review.add_argument("folder", type=Path, metavar="DIR")
    review.add_argument(
        "--release",
        metavar="CANDIDATE",
        help="you have read its patch: `loop resume` tries it like any other",
    )
    review.add_argument("--because", metavar="TEXT", help="why; with --release")
    review.set_defaults(run=_review)
    memory = actions.add_parser("memory", help="mechanism records and their evidence")
    memory.add_argument("--memory", type=Path, metavar="FILE")
    memory.add_argument("--retire", metavar="RECORD", help="keep this record out of every answer from now on")
    memory.add_argument("--because", metavar="TEXT", help="why; with --retire")
    memory.set_defaults(run=_memory)
    ceiling = actions.add_parser(
        "ceiling", help="where stock's time goes, and what physics would leave of it"
    )
    add_ceiling(ceiling)
    sandbox.register(actions)


def _run(options: argparse.Namespace) -> int:
    from agent_loop.assembling import (  # noqa: PLC0415
        Folders,
        Parts,
        make_explorer,
        open_controller,
        open_doors,
    )
    from agent_loop.campaign import load_loop  # noqa: PLC0415
    from agent_loop.executors.protocol import TrialFailed  # noqa: PLC0415
    from agent_loop.memory.store import Memory  # noqa: PLC0415
    from agent_loop.reporting import write_report  # noqa: PLC0415
    from agent_loop.watching import EventTail, Watch  # noqa: PLC0415
    from harness.storage import locked  # noqa: PLC0415

    loop = load_loop(options.campaign)
    folders = Folders(options.out or Path("reports") / loop.plan.name)
    if options.resume and not folders.database.is_file():
        raise UsageError(f"{folders.root} holds no campaign to resume; use `loop run`")
    first = _planted(options.plant)
    keys = options.controller or paths.controller_dir()
    with (
        locked(folders.root),
        open_doors(loop, folders, options.key_file) as doors,
        _executor(options) as executor,
    ):
        explorers = [make_explorer(spec, loop.plan.submissions, first, doors) for spec in loop.plan.explorers]
        floor, found = _floors(loop, options.ceiling, folders, executor)
        memory = Memory(_memory_file(options))
        parts = Parts(
            loop=loop,
            folders=folders,
            keys=keys,
            memory=memory,
            executor=executor,
            floor=floor,
            ceiling=found,
            now=_now,
        )
        tail = EventTail(folders.events)
        with Watch() as watch:

            def told(database: Database) -> None:
                tail.write(database)
                watch.show(database)

            try:
                controller = open_controller(parts, told)
                accepted = controller.run(explorers)
            except TrialFailed as error:
                raise InvalidRun(error.said) from None
            finally:
                memory.close()
        write_report(loop, controller.database, folders.root, found, folders.asked)
        watch.close(controller.database)
        controller.database.close()
    print(f"report: {folders.root / 'report.html'} (also summary.json, events.jsonl)")
    return EXIT_OK if accepted else EXIT_VIOLATED


@contextlib.contextmanager
def _executor(options: argparse.Namespace) -> Iterator[Executor]:
    """Where trials run: here, or on a cluster."""
    from agent_loop.executors.local import LocalProcesses  # noqa: PLC0415
    from agent_loop.executors.ray_cluster import RayCluster  # noqa: PLC0415

    if options.ray is None:
        yield LocalProcesses(paths.user_cache() / "host.lock", evals_dir=options.evals_dir)
        return
    cluster = RayCluster(options.ray, gpus=options.ray_gpus, evals_dir=options.evals_dir)
    try:
        yield cluster
    finally:
        cluster.close()


def _planted(files: Sequence[Path]) -> list[Candidate]:
    """Candidates from files.

    Raises:
        UsageError: one cannot be read.
        DataError: one is no candidate; the field is named.
    """
    from agent_loop.records import Candidate  # noqa: PLC0415
    from harness.codec import from_json  # noqa: PLC0415

    try:
        return [from_json(path.read_bytes(), Candidate, str(path)) for path in files]
    except OSError as error:
        raise UsageError(f"--plant: {error.filename}: cannot be read: {error.strerror}") from None


def _floors(
    loop: Loop, given: Path | None, folders: Folders, executor: Executor
) -> tuple[Callable[[Any], float], CeilingModel | None]:
    """What a response takes at least here, and where stock's time goes.

    Least is 0 where the target has no weights to tell it by.
    """
    from agent_loop.cost_model.ceiling import CeilingModel  # noqa: PLC0415
    from agent_loop.cost_model.floors import response_floor  # noqa: PLC0415
    from agent_loop.cost_model.machine import measure_machine, model_size  # noqa: PLC0415
    from agent_loop.cost_model.surveying import survey  # noqa: PLC0415
    from harness.codec import canonical_json, from_json  # noqa: PLC0415
    from harness.models import resolve_model  # noqa: PLC0415
    from harness.storage import write_atomic  # noqa: PLC0415

    path = folders.ceiling if given is None and folders.ceiling.is_file() else given
    try:
        found = None if path is None else from_json(path.read_bytes(), CeilingModel, str(path))
    except OSError as error:
        raise UsageError(f"--ceiling: {path}: cannot be read: {error.strerror}") from None
    if found is not None:
        write_atomic(folders.ceiling, canonical_json(found))  # a campaign that goes on keeps its floors
        return response_floor(found.machine, found.model), found
    deployment = loop.job.deployment
    size = model_size(resolve_model(deployment.target).path, deployment)
    if size is None:
        return lambda _: 0.0, None
    machine = measure_machine(deployment)
    return response_floor(machine, size), survey(loop, machine, size, executor, folders.ceiling, _note)


def _status(options: argparse.Namespace) -> int:
    from rich.console import Console  # noqa: PLC0415

    from agent_loop.assembling import Folders  # noqa: PLC0415
    from agent_loop.controller.database import Database  # noqa: PLC0415
    from agent_loop.watching import standing, table  # noqa: PLC0415

    folders = Folders(options.folder)
    database = Database(folders.database, str, must_exist=True)
    database.check_chain()
    console = Console()
    console.print(table(database))
    for line in standing(database, folders.asked):
        console.print(line, markup=False, highlight=False)
    database.close()
    return EXIT_OK


def _review(options: argparse.Namespace) -> int:
    from agent_loop.assembling import Folders  # noqa: PLC0415
    from agent_loop.controller.database import Database  # noqa: PLC0415
    from agent_loop.watching import caught, label, plain  # noqa: PLC0415
    from harness.storage import locked  # noqa: PLC0415

    if (options.release is None) != (not options.because):
        raise UsageError("--release CANDIDATE and --because TEXT go together")
    path = Folders(options.folder).database
    database = Database(path, lambda: _now().isoformat(timespec="milliseconds"), must_exist=True)
    database.check_chain()
    if options.release is not None:
        with locked(options.folder):
            database.release(options.release, options.because)
    verdicts = database.verdicts()
    for one in database.candidates():
        print(f"{one.id} {plain(label(one))}, by {plain(one.explorer)}")
        for verdict in verdicts:
            if verdict.candidate_id == one.id:
                print(f"  {verdict.stage}: {verdict.outcome}; {plain(verdict.detail)}")
    found = caught(database)
    print(f"{len(found)} candidates were refused for what they are, not for being slow")
    database.close()
    return EXIT_OK


def _memory(options: argparse.Namespace) -> int:
    from tabulate import tabulate  # noqa: PLC0415

    from agent_loop.memory.store import Memory, state_of  # noqa: PLC0415
    from agent_loop.watching import figure, plain  # noqa: PLC0415

    if (options.retire is None) != (not options.because):
        raise UsageError("--retire RECORD and --because TEXT go together")
    memory = Memory(_memory_file(options))
    if options.retire is not None:
        memory.retire(options.retire, options.because)
    rows = [
        (
            one.mechanism.id,
            plain(one.mechanism.name)[:40],
            state_of(one),
            row.deployment,
            row.outcome,
            figure(row.effect),
            "-" if row.closed is None else f"{row.closed:.0%}",
        )
        for one in memory.known(retired=True)
        for row in one.evidence
    ]
    headers = ("record", "mechanism", "state", "deployment", "outcome", "speedup", "gap closed")
    print(tabulate(rows, headers=headers, disable_numparse=True))
    memory.close()
    return EXIT_OK


def _memory_file(options: argparse.Namespace) -> Path:
    given: Path | None = options.memory
    return given if given is not None else paths.controller_dir().parent / "memory.sqlite"


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
