"""From a campaign file to a controller that is ready: folders, floors, memory, explorers."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agent_loop.campaign import ExplorerSpec, Loop
from agent_loop.controller.controlling import Controller, State
from agent_loop.controller.database import Database
from agent_loop.controller.judging import Floor
from agent_loop.controller.trials import Bench
from agent_loop.cost_model.ceiling import CeilingModel
from agent_loop.executors.protocol import Executor
from agent_loop.explorers.offline import OfflineExplorer
from agent_loop.guest.arms import arm_of
from agent_loop.memory.remembering import recaller, rememberer
from agent_loop.memory.store import Memory
from agent_loop.protocols import Brief, Explorer
from agent_loop.records import Candidate
from harness.errors import UsageError
from harness.plan import Job


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a campaign lies; nothing is written anywhere else but the keys and the memory."""

    root: Path

    @property
    def database(self) -> Path:
        """The controller's file."""
        return self.root / "loop.sqlite"

    @property
    def trials(self) -> Path:
        """Runs on public rows, and candidate files of confirmations."""
        return self.root / "trials"

    @property
    def unseen(self) -> Path:
        """The sealed campaign."""
        return self.root / "unseen"

    @property
    def worktrees(self) -> Path:
        """Patches, laid out as files."""
        return self.root / "worktrees"

    @property
    def events(self) -> Path:
        """The event chain as JSON lines."""
        return self.root / "events.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the command line brings together."""

    loop: Loop
    folders: Folders
    keys: Path
    memory: Memory
    executor: Executor
    floor: Floor
    ceiling: CeilingModel | None
    now: Callable[[], datetime.datetime]


def unseen_job(loop: Loop) -> Job:
    """The job of a confirmation: stock on as many launches as the rules say."""
    measure = msgspec.structs.replace(loop.job.plan.measure, launches=loop.plan.rules.launch_blocks, blocks=1)
    plan = msgspec.structs.replace(loop.job.plan, name=f"{loop.plan.name}-confirm", measure=measure)
    return msgspec.structs.replace(loop.job, plan=plan)


def unseen_options(loop: Loop) -> tuple[str, ...]:
    """Of ``evals campaign``."""
    rules, unseen = loop.plan.rules, loop.plan.unseen
    values = {
        "--shards": rules.confirm_slots,
        "--public-rows": unseen.public_rows,
        "--shard-rows": unseen.shard_rows,
        "--level": rules.level,
        "--gain": rules.gain,
        "--confirm-gain": max(0.05, 2.0 * rules.gain),
        "--test": "sign-flip",
    }
    return tuple(word for name, value in values.items() for word in (name, str(value)))


def open_controller(
    parts: Parts,
    told: Callable[[Database], None] = lambda _: None,
    at: Callable[[State], None] = lambda _: None,
) -> Controller:
    """Seal the unseen rows where that is still to do, and open the database.

    Raises:
        HarnessError: a file cannot be opened or is another campaign's.
        TrialFailed: the rows cannot be sealed.
    """
    loop, folders = parts.loop, parts.folders
    folders.root.mkdir(parents=True, exist_ok=True)
    parts.executor.start_unseen(unseen_job(loop), folders.unseen, parts.keys, unseen_options(loop))
    database = Database(folders.database, lambda: parts.now().isoformat(timespec="milliseconds"))
    bench = Bench(
        loop=loop,
        executor=parts.executor,
        folder=folders.trials,
        rows=folders.unseen / "public.jsonl",
        floor=parts.floor,
        arm=arm_of(folders.worktrees),
    )
    campaign = json.loads((folders.unseen / "campaign.json").read_bytes())["campaign_id"]
    return Controller(
        bench=bench,
        database=database,
        brief=brief(loop, parts.ceiling),
        unseen=folders.unseen,
        keys=parts.keys,
        recall=recaller(parts.memory, loop.job, parts.ceiling, parts.now),
        remember=rememberer(parts.memory, loop.job, parts.ceiling, str(campaign), parts.now),
        told=lambda: told(database),
        at=at,
    )


def brief(loop: Loop, ceiling: CeilingModel | None) -> Brief:
    """What explorers are told."""
    return Brief(
        campaign=loop.plan.name,
        deployment=loop.job.deployment,
        stock_backend=loop.stock.backend,
        stock_params=loop.stock.params,
        spaces=loop.plan.spaces,
        gaps=() if ceiling is None else ceiling.gaps,
        ceiling=None if ceiling is None else ceiling.speedup,
    )


def make_explorer(spec: ExplorerSpec, submissions: int, first: Sequence[Candidate] = ()) -> Explorer:
    """The explorer that a campaign names.

    Args:
        spec: of the campaign.
        submissions: that a round measures at most.
        first: candidates from files, for the offline explorer to try before it searches.

    Raises:
        UsageError: it is one that is made elsewhere.
    """
    if spec.kind == "offline":
        return OfflineExplorer(spec.name, batch=spec.batch, submissions=submissions, first=first)
    raise UsageError(f"explorer {spec.name}: kind {spec.kind!r} needs a gateway; see `loop run --help`")
