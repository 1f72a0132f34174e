from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from agent_loop.campaign import Controls, ExplorerSpec, Rules, Tuning
from agent_loop.controller.controlling import State
from agent_loop.controller.database import Database
from agent_loop.explorers.offline import OfflineExplorer
from agent_loop.protocols import BudgetSpent, Desk, Knob
from agent_loop.records import Budget, Candidate, Hypothesis, Told
from harness.errors import DataError, InvalidRun, UsageError
from harness.plan import Param
from tests.agent_loop.simulated import BACKEND, Host, Stage, make_loop
from tests.forking import in_fork


def width(params: Mapping[str, Param]) -> float:
    """Each token more gains a tenth."""
    return 1.0 + (int(params.get("width", 2)) - 2) / 10.0


def candidate(explorer: str = "offline", **params: Any) -> Candidate:
    return Candidate(
        name="made",
        backend=BACKEND,
        params=params,
        hypothesis=Hypothesis(mechanism="width"),
        origin="search",
        explorer=explorer,
    )


class Scripted:
    """An explorer that does what a test says."""

    name = "offline"

    def __init__(self, work: Callable[[Desk], object]) -> None:
        self.work = work

    def explore(self, desk: Desk, budget: Budget, seed: int) -> None:
        self.work(desk)


def run(root: Path, host: Host, work: Callable[[Desk], object], **hooks: Any) -> Stage:
    stage = Stage(root, host, **hooks)
    stage.controller().run([Scripted(work)])
    return stage


def database(root: Path) -> Database:
    return Database(root / "loop.sqlite", str, readonly=True)


def final(root: Path) -> dict[str, str]:
    """Newest outcome of every candidate, and the slots."""
    opened = database(root)
    found = {one.id: verdict.outcome for one in opened.candidates() if (verdict := opened.last(one.id))}
    tuning = str([(one.params, verdict.outcome) for one, verdict in opened.tuning()])
    return {**found, "tuning": tuning, "slots": str([(slot.candidate, slot.line) for slot in opened.slots()])}


def tells(found: list[Told], *candidates: Candidate, submit: bool = False) -> Callable[[Desk], None]:
    """Tries the candidates, and submits those that passed."""

    def work(desk: Desk) -> None:
        found.extend(desk.trial(candidates))
        for one, told in zip(candidates, found[-len(candidates) :], strict=True):
            if submit and told.passed:
                desk.submit(one)

    return work


def test_the_best_knob_is_found_measured_and_confirmed_on_rows_nobody_has_seen(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Host(tmp_path, width))
    accepted = stage.controller().run([OfflineExplorer("offline", batch=3)])

    assert len(accepted) in (1, 2)
    best = database(tmp_path).candidate(accepted[0].candidate_id)
    assert best is not None
    assert best.params == {"width": 6}
    assert accepted[0].effect is not None
    assert accepted[0].effect.low > 1.3
    assert next((one.id, v.outcome) for one, v in stage.remembered) == (best.id, "ACCEPT")
    database(tmp_path).check_chain()


def test_each_fault_has_its_own_verdict_and_spoils_nobody_elses(tmp_path: Path) -> None:
    host = Host(
        tmp_path,
        width,
        lossy=lambda params: "lossy" in params,
        refuses=lambda params: "odd" in params,
        fails=lambda params: "fails" in params,
    )
    found: list[Told] = []
    candidates = [
        candidate(width=4),
        candidate(width=6, lossy=True),
        candidate(width=6, odd=True),
        candidate(width=6, fails=True),
        candidate(width=1),
        msgspec.structs.replace(candidate(width=5), backend="elsewhere:open_session"),
    ]
    run(tmp_path, host, tells(found, *candidates))
    assert [told.outcome for told in found] == [
        "PASSED",
        "LOSSY",
        "POLICY",
        "INCOMPLETE",
        "NO_GAIN",
        "POLICY",
    ]
    assert [told.stage for told in found] == ["screen", "lossless", "build", "lossless", "screen", "policy"]


def test_what_is_faster_than_physics_is_quarantined(tmp_path: Path) -> None:
    found: list[Told] = []
    run(
        tmp_path,
        Host(tmp_path, lambda params: 1000.0 if params.get("width") == 9 else 1.0),
        tells(found, candidate(width=9), candidate(width=3)),
        floor=lambda _: 0.1,
    )
    assert found[0].outcome == "BELOW_CEILING"
    assert found[1].outcome != "BELOW_CEILING"


def test_a_confirmation_tells_the_explorer_one_bit(tmp_path: Path) -> None:
    heard: list[Told] = []
    loop = make_loop(rounds=2)

    def work(desk: Desk) -> None:
        if not desk.heard():
            for one in (candidate(width=6), candidate(width=3)):
                desk.submit(one)
        heard[:] = desk.heard()

    host = Host(tmp_path, width)
    controller = Stage(tmp_path, host, loop).controller()
    host.deny = {"width": 3}
    controller.run([Scripted(work)])

    confirmed = [told for told in heard if told.stage == "confirm"]
    assert [told.outcome for told in confirmed] == ["ACCEPT", "NO_GAIN"]
    assert [told.detail for told in confirmed] == ["accepted", "rejected"]
    assert all(told.effect is None and told.acceptance_length is None for told in confirmed)


def test_confirm_slots_are_the_only_way_to_unseen_rows_and_run_out(tmp_path: Path) -> None:
    loop = make_loop(submissions=4)
    ids = [candidate(width=w) for w in (3, 4, 5, 6)]

    def work(desk: Desk) -> None:
        for one in ids:
            desk.submit(one)

    stage = run(tmp_path, Host(tmp_path, width), work, loop=loop)
    opened = database(tmp_path)
    verdicts = [opened.verdict(one.id, "confirm") for one in ids]
    assert [v.outcome for v in verdicts if v is not None] == ["UNPROVEN", "UNPROVEN", "ACCEPT", "ACCEPT"]
    assert (tmp_path / "shards").read_text().split() == ["confirm-000", "confirm-001"]
    assert all(slot.alpha == stage.loop.plan.rules.level for slot in opened.slots())


def test_stock_that_gains_over_itself_stops_the_campaign(tmp_path: Path) -> None:
    host = Host(tmp_path, lambda params: 1.2)  # a host that always favours the second arm
    with pytest.raises(InvalidRun, match="A/A control: stock gains over itself"):
        run(tmp_path, host, lambda desk: desk.submit(candidate(width=6)))
    assert database(tmp_path).slots() == []


def test_a_handicap_that_is_not_seen_stops_the_campaign(tmp_path: Path) -> None:
    loop = make_loop(controls=Controls(handicap={"width": 1}))
    blind = Host(tmp_path, lambda params: 1.3 if params.get("width") == 6 else 1.0)
    with pytest.raises(InvalidRun, match="surely slower is not seen to be"):
        run(tmp_path, blind, lambda desk: desk.submit(candidate(width=6)), loop=loop)
    seeing = tmp_path / "seeing"
    seeing.mkdir()
    run(seeing, Host(seeing, width), lambda desk: desk.submit(candidate(width=6)), loop=loop)
    assert len(database(seeing).slots()) == 1


def test_a_budget_ends_the_search_and_what_was_submitted_stands(tmp_path: Path) -> None:
    loop = make_loop(explorers=(ExplorerSpec(name="offline", kind="offline", budget=Budget(trials=2)),))
    spent: list[str] = []

    def work(desk: Desk) -> None:
        desk.trial([candidate(width=4), candidate(width=6)])
        desk.trial([candidate(width=6)])  # known: it costs nothing
        desk.submit(candidate(width=6))
        try:
            desk.trial([candidate(width=3)])
        except BudgetSpent as error:
            spent.append(error.field)
            raise

    run(tmp_path, Host(tmp_path, width), work, loop=loop)
    assert spent == ["trials"]
    assert len(database(tmp_path).slots()) == 1


def test_an_explorer_that_breaks_ends_alone(tmp_path: Path) -> None:
    def work(desk: Desk) -> None:
        desk.submit(candidate(width=6))
        raise RuntimeError("lost")

    run(tmp_path, Host(tmp_path, width), work)
    assert len(database(tmp_path).slots()) == 1
    assert any(event.kind == "explorer-failed" for event in database(tmp_path).events())


def campaign(root: Path, state: str | None = None) -> None:
    """A campaign that tunes, finds, confirms, stacks and ablates; it is killed where `state` is reached."""
    root.mkdir(exist_ok=True)
    tuning = Tuning(trials=2, knobs=(Knob(name="width", values=(1, 2, 3)),))
    loop = make_loop(ablate=make_loop().plan.screen, tune=tuning)
    host = Host(root, lambda params: width(params) * (1.02 if params.get("turbo") else 1.0))

    def die(reached: State) -> None:
        if reached == state:
            os.kill(os.getpid(), signal.SIGKILL)

    def work(desk: Desk) -> None:
        tried = [candidate(width=4), candidate(width=6, turbo=True), candidate(width=1)]
        for one, told in zip(tried, desk.trial(tried), strict=True):
            if told.passed:
                desk.submit(one)

    Stage(root, host, loop).controller(die).run([Scripted(work)])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("whole")
    campaign(root)
    return final(root)


@pytest.mark.parametrize("state", get_args(State))
def test_a_controller_that_is_killed_anywhere_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, state: str, uninterrupted: dict[str, str]
) -> None:
    root = tmp_path / "campaign"
    assert in_fork(lambda: campaign(root, state)) == -signal.SIGKILL
    campaign(root)
    again = final(root)
    database(root).check_chain()
    looked = (root / "shards").read_text().split()
    assert len(looked) == len(set(looked))  # no shard was looked at twice
    if state == "slot-opened":  # the slot is lost before anybody looked: one fewer is left
        assert "lost" in again["slots"]
        assert len(looked) == 1
    else:
        assert again == uninterrupted


def test_a_campaign_is_not_continued_with_other_rules(tmp_path: Path) -> None:
    run(tmp_path, Host(tmp_path, width), lambda desk: None)
    other = make_loop(rules=Rules(alpha=0.4, confirm_slots=2, launch_blocks=6))
    with pytest.raises(UsageError, match="another loop"):
        run(tmp_path, Host(tmp_path, width), lambda desk: None, loop=other)


def test_a_changed_event_breaks_the_chain(tmp_path: Path) -> None:
    run(tmp_path, Host(tmp_path, width), lambda desk: desk.submit(candidate(width=6)))
    raw = sqlite3.connect(tmp_path / "loop.sqlite")
    raw.execute("UPDATE event SET body = replace(body, 'NO_GAIN', 'ACCEPT'), kind = 'x' WHERE seq = 2")
    raw.commit()
    raw.close()
    with pytest.raises(DataError, match="event 2 does not follow"):
        database(tmp_path).check_chain()
