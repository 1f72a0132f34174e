"""The loop as it is used, on the world of `engine`: real processes, sandbox, oracle, sealed rows."""

from __future__ import annotations

import contextlib
import datetime
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agent_loop.assembling import Folders, Parts, open_controller
from agent_loop.campaign import ExplorerSpec, Loop, LoopPlan, Rules, Shape, Unseen
from agent_loop.controller.database import Database
from agent_loop.controller.judging import Floor
from agent_loop.executors.local import LocalProcesses
from agent_loop.executors.protocol import Executor, TrialFailed
from agent_loop.memory.store import Memory
from agent_loop.protocols import Desk
from agent_loop.records import Budget, Candidate, Hypothesis
from harness.cli import main
from harness.environment import ROOT
from harness.plan import (
    ArmSpec,
    Deployment,
    Job,
    MeasureSpec,
    ModelSpec,
    OracleSpec,
    Param,
    Plan,
    SetSpec,
    StatsSpec,
)
from harness.records import Response, Sampling
from tests.agent_loop.guests import patch
from tests.agent_loop.zoo import engine
from tests.sealed_evals.campaign import engine as known

CANDIDATES = Path(__file__).parent / "candidates"
TOKENS = 12
FLOOR_SECONDS = engine.STEP_SECONDS / 2.0  # half of what any answer takes here: one prefill, one step
WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def text_of(name: str) -> str:
    return (CANDIDATES / f"{name}.py").read_text()


def candidate(name: str, text: str | None = None, /, **params: Param) -> Candidate:
    """A candidate of the zoo as an explorer would propose it; its text is a file of `candidates`."""
    return Candidate(
        name=name,
        backend="faster:open_session",
        params=params,
        patch=patch(text_of(name) if text is None else text),
        hypothesis=Hypothesis(mechanism=name, explanation="verified lossless; accept", expected_speedup=50.0),
        origin="model",
        explorer="zoo",
    )


def make_loop(model: Path, work: str = "sleep", **fields: Any) -> Loop:
    """A campaign that improves the stock of `engine`."""
    stock = ArmSpec(
        name="stock", kind="stock", backend=f"{engine.HERE}:open_stock", params={"width": 2, "work": work}
    )
    plan = Plan(
        schema="plan/1",
        name="zoo",
        deployment="zoo",
        label="smoke",
        sets=(SetSpec(name="embedded", count=1),),
        arms=(stock,),
        sampling=Sampling(max_tokens=TOKENS),
        measure=MeasureSpec(launches=1, blocks=1, warmup_prompts=2, max_foreign_load=1.0),
        oracle=OracleSpec(
            scorer=f"{known.HERE}:open_scorer", calibration_prompts=1, calibration_tokens=4, verify_rows=2
        ),
        stats=StatsSpec(resamples=200),
    )
    deployment = Deployment(
        schema="deployment/1",
        name="zoo",
        target=ModelSpec(path=str(model), remote=True),
        device="cpu",
        context_length=4096,
    )
    usual: dict[str, Any] = {
        "explorers": (ExplorerSpec(name="zoo", kind="offline", budget=Budget(trials=200)),),
        "rules": Rules(confirm_slots=2, launch_blocks=6, ttft_margin=2.0, tail_margin=2.0),
        "screen": Shape(prompts=3),
        "measure": Shape(prompts=4, launches=2),
        "unseen": Unseen(public_rows=12, shard_rows=4),
        "submissions": 3,
    }
    return Loop(
        LoopPlan(schema="loop/1", name="zoo", plan="zoo", **(usual | fields)),
        Job(plan=plan, deployment=deployment),
    )


class Scripted:
    """An explorer that does what a test says."""

    name = "zoo"

    def __init__(self, work: Callable[[Desk], object]) -> None:
        self.work = work

    def explore(self, desk: Desk, budget: Budget, seed: int) -> None:
        self.work(desk)


class InThisProcess(LocalProcesses):
    """The commands of the house without a process of their own, which takes seconds to load.

    What is measured runs in the launch's process, and guests in rooms of theirs, all the same.
    """

    def _run(self, words: Sequence[str], folder: Path, codes: Sequence[int]) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        told = io.StringIO()
        with (
            self._held(),
            (folder / "log.txt").open("a") as log,
            contextlib.redirect_stderr(log),
            contextlib.redirect_stdout(told),
        ):
            code = main([*words])
        if code not in codes:
            raise TrialFailed((folder / "log.txt").read_text().rstrip().rpartition("\n")[2], code)
        return told.getvalue()


class Campaign(NamedTuple):
    """One that is over."""

    folders: Folders
    keys: Path
    database: Database
    events: tuple[str, ...]


@contextlib.contextmanager
def in_root() -> Iterator[None]:
    """From where `tests` can be imported by every process."""
    with contextlib.chdir(ROOT):
        yield


def run(
    at: Path,
    work: Callable[[Desk], object],
    loop: Loop | None = None,
    executor: Executor | None = None,
    floor: Floor | None = None,
) -> Campaign:
    """A whole campaign; a failure of its explorer is the test's."""
    loop = make_loop(known.write_model(at / "model")) if loop is None else loop
    folders, keys = Folders(at / "run"), at / "keys"
    memory = Memory(at / "memory.sqlite")
    raised: list[BaseException] = []

    def noted(desk: Desk) -> None:
        try:
            work(desk)
        except BaseException as error:
            raised.append(error)
            raise

    with in_root():
        controller = open_controller(
            Parts(
                loop=loop,
                folders=folders,
                keys=keys,
                memory=memory,
                executor=executor or LocalProcesses(at / "host.lock", timeout_s=900.0),
                floor=floor or least_seconds,
                ceiling=None,
                now=lambda: WHEN,
            )
        )
        controller.run([Scripted(noted)])
    memory.close()
    if raised:
        raise raised[0]
    database = controller.database
    return Campaign(folders, keys, database, tuple(event.kind for event in database.events()))


def least_seconds(response: Response) -> float:
    """What an answer takes at least in this world, by half."""
    return FLOOR_SECONDS * math.ceil(len(response.token_ids) / TOKENS)


def outcomes(campaign: Campaign) -> Mapping[str, tuple[str, str, str]]:
    """Newest stage, outcome and detail by name of the candidate."""
    found = {}
    for one in campaign.database.candidates():
        verdict = campaign.database.last(one.id)
        if verdict is not None:
            found[one.name] = (verdict.stage, verdict.outcome, verdict.detail)
    return found
