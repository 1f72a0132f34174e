"""From a campaign file to a controller that is ready: folders, floors, memory, explorers."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agent_loop.campaign import ExplorerSpec, Loop
from agent_loop.controller.ablation import sources_of
from agent_loop.controller.controlling import Controller, State
from agent_loop.controller.database import Database
from agent_loop.controller.judging import Floor
from agent_loop.controller.trials import Bench
from agent_loop.cost_model.ceiling import CeilingModel
from agent_loop.executors.protocol import Executor
from agent_loop.explorers.claude import MODEL, ClaudeExplorer
from agent_loop.explorers.claude_code import ClaudeCodeExplorer, check_installed
from agent_loop.explorers.offline import OfflineExplorer
from agent_loop.explorers.tuning import tune
from agent_loop.gateway.accounts import LEDGER, read_spent
from agent_loop.gateway.prices import load_prices
from agent_loop.gateway.settings import Settings
from agent_loop.gateway.starting import Door, guests, running, with_key
from agent_loop.guest.arms import arm_of
from agent_loop.memory.remembering import recaller, rememberer
from agent_loop.memory.store import Memory
from agent_loop.protocols import Brief, Explorer
from agent_loop.records import Candidate, Spent
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
    def ceiling(self) -> Path:
        """What the cost model told of stock."""
        return self.root / "ceiling.json"

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
    def gateway(self) -> Path:
        """Ledger and transcripts of what models were asked."""
        return self.root / "gateway"

    @property
    def asked(self) -> Spent | None:
        """What models have cost so far; None where none was asked."""
        ledger = self.gateway / LEDGER
        if not ledger.is_file():
            return None
        return next((one for scope, one in read_spent(ledger).items() if "/" not in scope), None)

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
        recall=recaller(parts.memory, loop.job, parts.ceiling, parts.now, str(campaign)),
        remember=rememberer(parts.memory, loop.job, parts.ceiling, str(campaign), parts.now),
        tuner=lambda trial: tune(
            trial, loop.tuning_space, loop.plan.tune.trials, loop.plan.tune.batch, loop.plan.seed
        ),
        conflict=parts.memory.conflict,
        sources=lambda: sources_of(loop.packages),
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


@contextlib.contextmanager
def open_doors(loop: Loop, folders: Folders, key_file: Path | None) -> Iterator[Mapping[str, Door]]:
    """A gateway for the explorers that speak to a model; no process where there is none.

    Args:
        loop: the campaign.
        folders: of it.
        key_file: holds the API key; None takes it out of the environment.

    Raises:
        ModelError: Claude Code is asked for, and is not installed.
        UsageError: there is no key, a model has no price, or Claude Code cannot be kept in here.
    """
    speaking = {one.name: one for one in loop.plan.explorers if one.kind in ("claude", "claude-code")}
    if not speaking:
        yield {}
        return
    prices = load_prices()
    for one in speaking.values():
        prices.of(one.model or MODEL)
    rooms = any(one.kind == "claude-code" for one in speaking.values())
    if rooms:
        check_installed()
    with tempfile.TemporaryDirectory(prefix="gateway-") as place:  # the path of a socket must be short
        settings = Settings(
            campaign=loop.plan.name,
            folder=str(folders.gateway.absolute()),
            explorers=guests({name: one.budget for name, one in speaking.items()}),
            budget=loop.plan.budget,
            socket=f"{place}/socket" if rooms else None,
        )
        with running(with_key(settings, key_file, os.environ)) as doors:
            yield doors


def make_explorer(
    spec: ExplorerSpec,
    submissions: int,
    first: Sequence[Candidate] = (),
    doors: Mapping[str, Door] | None = None,
) -> Explorer:
    """The explorer that a campaign names.

    Args:
        spec: of the campaign.
        submissions: that a round measures at most.
        first: candidates from files, for the offline explorer to try before it searches.
        doors: of `open_doors`, for explorers that speak to a model.

    Raises:
        UsageError: its kind cannot be had here.
    """
    if spec.kind == "offline":
        return OfflineExplorer(spec.name, batch=spec.batch, submissions=submissions, first=first)
    if spec.kind == "claude" and doors is not None and spec.name in doors:
        return ClaudeExplorer(spec.name, doors[spec.name], model=spec.model)
    if spec.kind == "claude-code" and doors is not None and spec.name in doors:
        return ClaudeCodeExplorer(spec.name, doors[spec.name], model=spec.model)
    raise UsageError(f"explorer {spec.name}: kind {spec.kind!r} needs a gateway, and none was opened")
