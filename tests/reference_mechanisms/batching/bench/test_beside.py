"""Engines beside each other: stock's best draft length, rounds, files. Workers answer by rule."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from reference_mechanisms.batching.bench import beside, results
from reference_mechanisms.batching.bench.lines import Served
from reference_mechanisms.batching.bench.resident import Exact
from reference_mechanisms.batching.bench.steps import StepError, step_ms
from reference_mechanisms.batching.traces.format import TRACES
from tests.reference_mechanisms.batching.bench import fake_worker, small

ROOT = Path(fake_worker.__file__).resolve().parents[4]
LOADS = {8: 16, 32: 64}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))


def commands(behaviours: dict[str, str] | None = None) -> Callable[[str], Sequence[str]]:
    def command(name: str) -> list[str]:
        speed = 200.0 if name == beside.OWN else 50.0 if name == beside.RELEASED else 100.0
        drafts = beside.drafts_of(name) if name.startswith(beside.TUNED) else 0
        behaviour = (behaviours or {}).get(name, "works")
        return [sys.executable, fake_worker.__file__, str(speed), str(drafts), behaviour]

    return command


def plan(**changes: object) -> beside.Plan:
    fields: dict[str, object] = {
        "concurrencies": tuple(LOADS),
        "requests": LOADS,
        "drafts": (0, 7, 15),
        "rounds": 2,
        "resident": 2,
        "limit_s": 60.0,
    }
    return beside.Plan(**(fields | changes))  # type: ignore[arg-type]


def run(folder: Path, which: beside.Plan, behaviours: dict[str, str] | None = None) -> beside.Found:
    return beside.Bench(which, commands(behaviours), folder / "logs", lambda found, words: None).run()


def test_stock_is_tuned_and_everything_timed_in_turn(tmp_path: Path) -> None:
    found = run(tmp_path, plan())
    assert [(one.engine, one.served.concurrency) for one in found.tried] == [
        (f"stock-k{drafts}", load) for drafts in (0, 7, 15) for load in LOADS
    ]
    assert found.best == {8: 7, 32: 7}
    assert found.rounds == 2
    order = [one.engine for one in found.timed if one.served.concurrency == 8]
    # Round 0 as they stand, round 1 in the reverse order.
    assert order == ["own", "stock-released", "stock-k7", "stock-k7", "stock-released", "own"]
    assert not found.faults


def test_a_known_best_is_not_tried(tmp_path: Path) -> None:
    found = run(tmp_path, plan(best={8: 0, 32: 15}, rounds=1))
    assert found.tried == []
    assert {one.engine for one in found.timed if one.served.concurrency == 32} == {
        "own",
        "stock-released",
        "stock-k15",
    }


def test_a_draft_length_that_does_not_come_up_is_left_out(tmp_path: Path) -> None:
    found = run(tmp_path, plan(rounds=1), {"stock-k15": "dies"})
    assert "no room" in found.faults["stock-k15"]
    assert found.best == {8: 7, 32: 7}


@pytest.mark.parametrize(
    ("behaviours", "message"),
    [
        ({"own": "dies"}, "own: did not come up: MemoryError"),
        ({"stock-released": "dies later"}, "stock-released: .*RuntimeError: lost"),
        ({"own": "answers something else"}, "own: .*told of 16 requests at 9"),
        ({f"stock-k{drafts}": "dies" for drafts in (0, 7, 15)}, "no draft length of stock"),
    ],
)
def test_without_what_is_needed_there_is_an_error(
    tmp_path: Path, behaviours: dict[str, str], message: str
) -> None:
    with pytest.raises(beside.BesideError, match=message):
        run(tmp_path, plan(rounds=1), behaviours)


def test_rounds_that_do_not_fit_the_time_are_left_out(tmp_path: Path) -> None:
    found = run(tmp_path, plan(best={8: 7, 32: 7}, rounds=50, limit_s=0.01))
    assert found.rounds == 1


def about(folder: Path) -> tuple[results.About, Path]:
    recording, traces = small.traces()
    path = folder / "traces.json"
    TRACES.write(path, recording, traces)
    return results.About("the command", "qwen3-8b", "weight12", path, recording, 0), path


def test_files_say_what_scripts_and_people_want(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"real": {"single": {"ar": 1.0}}, "system": {"64": {"x": 1}}}')
    told, _ = about(tmp_path)
    text = results.write_beside(tmp_path, told, small.traces()[1], run(tmp_path, plan()))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["real"] == {"single": {"ar": 1.0}}
    assert summary["system"]["64"] == {"x": 1}
    assert summary["system"]["32"] == {
        "candidate": pytest.approx(6400.0),
        "stock_released": pytest.approx(1600.0),
        "stock_tuned": pytest.approx(5440.0),
        "stock_tuned_k": 7,
    }
    raw = json.loads((tmp_path / "beside-vllm.json").read_text())
    assert raw["division"] == "system"
    assert raw["synthetic"] is True
    assert len(raw["timed"]) == 2 * 2 * 3
    ratio = next(one for one in raw["table"] if one["engine"] == "stock-released")["ours_over_it"]
    assert ratio["median"] == pytest.approx(4.0)
    assert len(raw["acceptance_rates"]["7"]) == 7
    assert "4.00x" in text
    assert "stock-k15" in (tmp_path / "beside-vllm.md").read_text()


def test_loads_may_be_timed_one_run_each(tmp_path: Path) -> None:
    told, path = about(tmp_path)
    traces = small.traces()[1]
    for load in (8, 32):
        found = run(tmp_path, plan(concurrencies=(load,), rounds=1))
        text = results.write_beside(tmp_path, told, traces, found)
        results.write_beside(tmp_path, told, traces, found)  # again: nothing is counted twice
    assert set(json.loads((tmp_path / "summary.json").read_text())["system"]) == {"8", "32"}
    raw = json.loads((tmp_path / "beside-vllm.json").read_text())
    assert len(raw["timed"]) == 2 * 3
    assert len(raw["tried"]) == 2 * 3
    assert raw["best_drafts"] == {"8": 7, "32": 7}
    assert text.count("stock-released") == 2
    # Of other traces it would not belong here.
    path.write_text(path.read_text() + " ")
    results.write_beside(tmp_path, told, traces, run(tmp_path, plan(concurrencies=(8,), rounds=1)))
    raw = json.loads((tmp_path / "beside-vllm.json").read_text())
    assert {one["concurrency"] for one in raw["timed"]} == {8}


def test_variants_may_be_timed_one_run_each(tmp_path: Path) -> None:
    told, _ = about(tmp_path)
    both = [
        served(variant=name, wall_s=2.0 if name == "nothing" else 1.0) for name in ("everything", "nothing")
    ]
    results.write_mechanisms(tmp_path, told, "a machine", both[:1], Exact(9, 0))
    text = results.write_mechanisms(tmp_path, told, "a machine", both[1:], None)
    raw = json.loads((tmp_path / "mechanisms.json").read_text())
    assert [one["variant"] for one in raw["timed"]] == ["everything", "nothing"]
    assert raw["exact"] == {"tokens": 9, "mismatches": 0}
    assert "0.500" in text


def test_before_the_first_round_there_is_a_file_and_no_figure(tmp_path: Path) -> None:
    told, _ = about(tmp_path)
    results.write_beside(tmp_path, told, small.traces()[1], beside.Found())
    assert not (tmp_path / "summary.json").exists()
    assert json.loads((tmp_path / "beside-vllm.json").read_text())["table"] == []


def stepping(name: str) -> list[str]:
    """Ours twice as fast, and behind a prefill of a second."""
    speed, behaviour = ("300", "prefills") if name == beside.OWN else ("150", "works")
    return [sys.executable, fake_worker.__file__, speed, "15", behaviour]


def test_a_step_is_the_difference_of_two_request_sets(tmp_path: Path) -> None:
    which = plan(concurrencies=(1, 8), requests={1: 1, 8: 8})
    found = beside.Bench(which, stepping, tmp_path / "logs", lambda found, words: None).step_times(4)
    assert len(found.timed) == 2 * 2 * 2 * 2
    told, _ = about(tmp_path)
    text = results.write_steps(tmp_path, told._replace(shape="hybrid-27b"), found)
    summary = json.loads((tmp_path / "summary.json").read_text())
    # 3 tokens a step; 1.7 times as fast with 7 drafts and more, at each load.
    assert summary["hybrid_step_ms"] == {
        "weight12": pytest.approx(1e3 * 3 / (300 * 1.7), abs=1e-3),
        "stock": pytest.approx(1e3 * 3 / (150 * 1.7), abs=1e-3),
    }
    assert set(summary["hybrid_step_ms_by_load"]) == {"1", "8"}
    assert "2.00x" in text
    assert json.loads((tmp_path / "steps-hybrid-27b.json").read_text())["rounds"] == 2


def served(**changes: object) -> Served:
    fields: dict[str, object] = {"concurrency": 2, "requests": 2, "tokens": 8, "wall_s": 1.0}
    full = {"full_tokens": 8, "full_s": changes.get("wall_s", 1.0), "verifications": 4.0}
    return Served(**(fields | full | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("short", "long", "message"),
    [
        (served(requests=3), served(), "as many requests as run"),
        (served(verifications=None), served(), "no verify step"),
        (served(), served(wall_s=2.0), "took no longer"),
        (served(), served(verifications=9.0), "took no longer"),
    ],
)
def test_what_gives_no_step_is_refused(short: Served, long: Served, message: str) -> None:
    with pytest.raises(StepError, match=message):
        step_ms(short, long)
