"""Accepted candidates are tried together; a stack that does not add up costs no slot and is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent_loop.campaign import Rules
from agent_loop.controller.database import Database
from agent_loop.protocols import Desk
from agent_loop.records import Candidate
from harness.plan import Param
from tests.agent_loop.simulated import Host, Stage, make_loop
from tests.agent_loop.test_controller import Scripted, candidate

WIDE, FORM = candidate(width=4), candidate(width=2, form="b")


def campaign(root: Path, together: float) -> Stage:
    """Two knobs that gain a fifth each, and `together` both."""

    def speed(params: Mapping[str, Param]) -> float:
        wide, form = params.get("width") == 4, params.get("form") == "b"
        return together if wide and form else 1.2 if wide or form else 1.0

    loop = make_loop(rules=Rules(confirm_slots=3, launch_blocks=6))
    stage = Stage(root, Host(root, speed, noise=0.002), loop)

    def work(desk: Desk) -> None:
        for one in (WIDE, FORM):
            desk.submit(one)

    controller = stage.controller()
    controller.run([Scripted(work)])
    controller.database.close()
    return stage


def stack(root: Path) -> Candidate:
    database = Database(root / "loop.sqlite", str, must_exist=True)
    return next(one for one in database.candidates() if one.explorer == "controller")


def test_parts_that_add_up_are_confirmed_as_one_and_remembered(tmp_path: Path) -> None:
    stage = campaign(tmp_path, 1.44)
    together = stack(tmp_path)
    assert together.params == {"width": 4, "form": "b"}
    database = Database(tmp_path / "loop.sqlite", str, must_exist=True)
    verdict, confirmed = database.verdict(together.id, "stack"), database.verdict(together.id, "confirm")
    assert verdict is not None
    assert verdict.outcome == "PASSED"
    assert "apart: made 1.2" in verdict.detail
    assert confirmed is not None
    assert confirmed.outcome == "ACCEPT"
    assert together.id in {one.id for one, _ in stage.remembered}
    assert stage.conflicts == []


def test_parts_that_do_not_add_up_spend_no_slot_and_are_noted(tmp_path: Path) -> None:
    stage = campaign(tmp_path, 1.1)
    together = stack(tmp_path)
    database = Database(tmp_path / "loop.sqlite", str, must_exist=True)
    verdict = database.verdict(together.id, "stack")
    assert verdict is not None
    assert verdict.outcome == "NO_GAIN"
    assert len(database.slots()) == 2
    ((one, other, _),) = stage.conflicts
    assert {one, other} == {WIDE.id, FORM.id}
    again = stage.controller()  # nothing is measured or decided a second time
    runs = len(stage.host.runs)
    again.run([Scripted(lambda desk: None)])
    assert len(stage.host.runs) == runs


def test_a_stack_that_fails_the_screen_is_noted_too(tmp_path: Path) -> None:
    stage = campaign(tmp_path, 0.5)  # slower than stock: the screen ends it
    database = Database(tmp_path / "loop.sqlite", str, must_exist=True)
    assert database.verdict(stack(tmp_path).id, "stack") is None
    assert len(stage.conflicts) == 1
