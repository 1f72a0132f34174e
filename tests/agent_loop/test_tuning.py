"""Stock is tuned before anything is searched, and gains are told over both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from agent_loop.campaign import Tuning
from agent_loop.controller.database import Database
from agent_loop.controller.tuning import best_tuned, held_against_tuned
from agent_loop.explorers.tuning import tune
from agent_loop.protocols import Knob, Space
from agent_loop.records import Candidate, Effect, Told, Verdict
from agent_loop.reporting import write_report
from harness.plan import Param
from tests.agent_loop.simulated import BACKEND, Host, Stage, make_loop
from tests.agent_loop.test_controller import Scripted, candidate

KNOB = Knob(name="width", values=(1, 2, 3, 4))
SPACE = Space(mechanism="stock", backend=BACKEND, fixed={"width": 2}, knobs=(KNOB,))


def speed(params: Mapping[str, Param]) -> float:
    """Width gains up to 4; `mechanism` gains besides."""
    return {1: 0.8, 2: 1.0, 3: 1.1, 4: 1.2}[int(params["width"])] * (1.3 if "mechanism" in params else 1.0)


def campaign(root: Path, *tried: Candidate, trials: int = 3) -> Stage:
    """Tunes on up to `trials` settings, then submits what is given."""
    loop = make_loop(tune=Tuning(trials=trials, knobs=(KNOB,), batch=2), submissions=4)
    stage = Stage(root, Host(root, speed), loop)

    def work(desk: object) -> None:
        for one in tried:
            desk.submit(one)  # type: ignore[attr-defined]

    controller = stage.controller()
    controller.run([Scripted(work)])
    write_report(loop, controller.database, root, None)
    controller.database.close()
    return stage


def opened(root: Path) -> Database:
    return Database(root / "loop.sqlite", str, must_exist=True)


def test_stocks_own_knobs_are_searched_before_anything_else(tmp_path: Path) -> None:
    campaign(tmp_path)
    trials = opened(tmp_path).tuning()
    assert {int(one.params["width"]) for one, _ in trials} == {1, 3, 4}
    best = best_tuned(trials)
    assert best is not None
    assert best.params == {"width": 4}
    kinds = [event.kind for event in opened(tmp_path).events()]
    assert kinds.index("tuned") > kinds.index("tuning")
    assert "proposed" not in kinds[: kinds.index("tuned")]
    assert not opened(tmp_path).candidates()  # they are stock's, not an explorer's


def test_a_gain_is_told_over_stock_as_released_and_over_tuned_stock(tmp_path: Path) -> None:
    both = candidate(width=4, mechanism=True)
    campaign(tmp_path, both)
    verdict = opened(tmp_path).verdict(both.id, "measure")
    assert verdict is not None
    assert verdict.effect is not None
    assert verdict.over_tuned is not None
    assert verdict.effect.point == pytest.approx(1.2 * 1.3, rel=0.03)
    assert verdict.over_tuned.point == pytest.approx(1.3, rel=0.03)
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["accepted"][0]["over_tuned_stock"]["point"] == pytest.approx(1.3, rel=0.03)
    assert found["accepted"][0]["speedup"]["point"] == pytest.approx(1.56, rel=0.03)
    assert found["tuned_stock"]["params"] == {"width": 4}
    assert found["tuned_stock"]["speedup"]["point"] == pytest.approx(1.2, rel=0.03)
    page = (tmp_path / "report.html").read_text()
    assert "over tuned stock, public prompts" in page
    assert "width=3" in page


def test_what_is_no_faster_than_tuned_stock_meets_no_unseen_row(tmp_path: Path) -> None:
    slower = candidate(width=3)  # 1.1 over stock as released, and less than what a knob gives
    campaign(tmp_path, slower)
    verdict = opened(tmp_path).verdict(slower.id, "measure")
    assert verdict is not None
    assert verdict.outcome == "NO_GAIN"
    assert "no faster than tuned stock" in verdict.detail
    assert opened(tmp_path).slots() == []


def test_without_tuning_the_report_says_so(tmp_path: Path) -> None:
    campaign(tmp_path, candidate(width=4, mechanism=True), trials=0)
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["tuned_stock"] is None
    assert found["accepted"][0]["over_tuned_stock"] is None
    assert "Stock was not tuned" in (tmp_path / "report.html").read_text()


def test_a_search_keeps_to_its_trials_and_is_the_same_again() -> None:
    def asked(seed: int, trials: int) -> list[int]:
        found: list[int] = []

        def trial(candidates: Sequence[Candidate]) -> list[Told]:
            found.extend(int(one.params["width"]) for one in candidates)
            return [
                Told(candidate_id=one.id, stage="tune", outcome="NO_GAIN", detail="") for one in candidates
            ]

        tune(trial, SPACE, trials, 2, seed)
        return found

    assert len(asked(1, 2)) == 2
    assert asked(1, 3) == asked(1, 3)
    assert sorted(asked(1, 9)) == [1, 3, 4]  # stock itself is not measured again


def test_an_interval_that_reaches_tuned_stock_is_inconclusive() -> None:
    rules = make_loop().plan.rules
    over = Effect(point=1.05, low=0.99, high=1.1, confidence=0.95, blocks=3)
    passed = Verdict(candidate_id="x", stage="measure", outcome="PASSED", detail="", over_tuned=over)
    assert held_against_tuned(passed, rules).outcome == "INCONCLUSIVE"
    clear = msgspec.structs.replace(over, low=1.01)
    assert held_against_tuned(msgspec.structs.replace(passed, over_tuned=clear), rules).outcome == "PASSED"
    lossy = msgspec.structs.replace(passed, outcome="LOSSY")
    assert held_against_tuned(lossy, rules) is lossy


def test_trials_want_knobs() -> None:
    with pytest.raises(ValueError, match="no `knobs` to tune"):
        Tuning(trials=1)
