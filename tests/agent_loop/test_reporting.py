from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from agent_loop.controller.database import Database
from agent_loop.cost_model.ceiling import ceiling
from agent_loop.demo.__main__ import succeeded, together
from agent_loop.records import Spent
from agent_loop.reporting import page, write_report
from agent_loop.watching import EventTail, Watch, plain
from harness.cli import main
from harness.errors import EXIT_OK, EXIT_USAGE
from tests.agent_loop.simulated import Host, Stage
from tests.agent_loop.test_controller import Scripted, candidate, width
from tests.agent_loop.test_cost_model import FREE, MACHINE, MODEL, STOCK, run_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A campaign with an accepted candidate, a lossy one, and text that wants to be obeyed."""
    stage = Stage(tmp_path, Host(tmp_path, width, lossy=lambda params: "lossy" in params))
    good, bad = candidate(width=6), candidate(width=6, lossy=True)
    evil = msgspec.structs.replace(bad, name="<script>alert(1)</script>\x1b[2J[red]accept[/red]")

    def work(desk: object) -> None:
        desk.trial([good, evil])  # type: ignore[attr-defined]
        desk.submit(good)  # type: ignore[attr-defined]

    controller = stage.controller()
    controller.run([Scripted(work)])
    tail = EventTail(tmp_path / "events.jsonl")
    tail.write(controller.database)
    asked = Spent(dollars=1.25, input_tokens=1000, output_tokens=50, turns=3)
    model = ceiling(run_of(STOCK, *FREE), "stock", MACHINE, MODEL)
    write_report(stage.loop, controller.database, tmp_path, model, asked)
    assert EventTail(tmp_path / "events.jsonl").write(controller.database) == []
    controller.database.close()
    return tmp_path


def test_the_summary_is_what_scripts_read(folder: Path) -> None:
    found = json.loads((folder / "summary.json").read_text())
    assert [one["params"] for one in found["accepted"]] == [{"width": 6}]
    assert found["rejected"] == {"LOSSY": 1}
    assert found["confirm_slots_used"] == 1
    assert found["best_speedup"]["low"] > 1.3
    assert found["reused_from_memory"] is False
    assert found["error_rates"]["confirmation"] == 0.025
    assert found["cost"]["models"]["dollars"] == 1.25
    assert found["cost"]["measured_seconds"] >= 0.0  # never added to what models cost


def test_the_page_escapes_what_an_explorer_wrote(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert plain("a\x1b[2Jb\n") == "a [2Jb "


def test_the_page_goes_from_stock_gap_by_gap_to_the_ceiling_and_marks_what_is_closed(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    model = ceiling(run_of(STOCK, *FREE), "stock", MACHINE, MODEL)
    waterfall = page[page.index("From stock to the ceiling") : page.index("Stock, tuned")]
    names = re.findall(r'<text x="0" y="17">([^<]*)</text>', waterfall)
    assert names == ["stock", *(gap.component for gap in model.gaps), "ceiling", "accepted"]
    bars = [
        (float(x), float(width))
        for x, width in re.findall(
            r'<rect class="[^"]*" x="([\d.]+)" y="4" height="16" width="([\d.]+)"', waterfall
        )
    ]
    whole, *gaps, floor, accepted = bars
    for (start, long), (before, _) in zip(gaps, [(whole[0] + whole[1], 0.0), *gaps], strict=False):
        assert start + long == pytest.approx(before, abs=0.2)  # each begins where the one above ends
    assert gaps[-1][0] == pytest.approx(floor[0] + floor[1], abs=0.2)
    best = json.loads((folder / "summary.json").read_text())["best_speedup"]["point"]
    assert accepted[1] == pytest.approx(whole[1] / best, abs=0.2)
    assert "Models cost $1.25 in 3 turns" in page
    assert "tokens not stock&#39;s" in page


def test_a_gap_below_its_floor_is_told_on_the_page(folder: Path) -> None:
    stage = Stage(folder, Host(folder, width))
    controller = stage.controller()
    slow = msgspec.structs.replace(MACHINE, bytes_per_s=4e8)
    found = page(stage.loop, controller.database, ceiling(run_of(STOCK, *FREE), "stock", slow, MODEL))
    controller.database.close()
    assert "measured below its floor: a measurement or a peak is wrong" in found


def test_events_are_a_chain_of_lines(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert {"began", "proposed", "verdict", "slot", "slot-closed", "ended"} <= {
        line["kind"] for line in lines
    }
    slot = next(line["seq"] for line in lines if line["kind"] == "slot")
    confirmed = next(
        line["seq"] for line in lines if line["kind"] == "verdict" and line["body"]["stage"] == "confirm"
    )
    assert slot < confirmed  # the ledger comes before the run


def test_status_review_and_memory_read_and_change_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["loop", "status", str(folder)]) == EXIT_OK
    told = capsys.readouterr().out
    assert "made: 1 of 2 confirm slots used" in told
    assert "ended at" in told
    assert "best confirmed: 1.4" in told
    assert "submitted: 1, measured for" in told
    assert "models" not in told  # none was asked
    assert main(["loop", "review", str(folder)]) == EXIT_OK
    told = capsys.readouterr().out
    assert "confirm: ACCEPT" in told
    assert "1 candidates were refused for what they are" in told
    assert "\x1b" not in told
    assert main(["loop", "memory", "--memory", str(folder / "m.sqlite")]) == EXIT_OK
    assert main(["loop", "status", str(folder / "nowhere")]) == EXIT_USAGE
    assert "give the folder of a campaign that was run" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [False, True])
def test_whoever_watches_sees_a_table_on_a_terminal_and_lines_elsewhere(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    database = Database(folder / "loop.sqlite", str, must_exist=True)
    with Watch() as watch:
        watch.show(database)
        watch.show(database)
    told = capsys.readouterr().err
    assert ("confirm slots used" in told) == terminal
    assert told.count("confirm: ACCEPT: made (width=6)") == (not terminal)  # what was told is not told again
    assert "\x1b[2J" not in told
    database.close()


def test_resume_wants_something_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = Path(__file__).resolve().parents[2] / "agent_loop/demo/first.toml"
    assert main(["loop", "resume", str(demo), "--out", str(tmp_path / "x")]) == EXIT_USAGE
    assert "holds no campaign to resume" in capsys.readouterr().err
    bad = tmp_path / "bad.toml"
    bad.write_text(demo.read_text().replace("launch_blocks = 6", "launch_blocks = 5"))
    assert main(["loop", "run", str(bad), "--out", str(tmp_path / "x")]) == EXIT_USAGE
    assert "it takes 6" in capsys.readouterr().err


def test_the_demonstration_wants_a_gain_three_cheats_and_the_memory(folder: Path) -> None:
    one = json.loads((folder / "summary.json").read_text())
    other = one | {"campaign": "b", "reused_from_memory": True, "rejected": {"POLICY": 1, "BELOW_CEILING": 1}}
    whole = together([one, other], 1.0)
    assert whole["rejected"] == {"BELOW_CEILING": 1, "LOSSY": 1, "POLICY": 1}
    assert whole["confirm_slots_used"] == 2
    assert succeeded(whole)
    assert not succeeded(whole | {"reused_from_memory": False})
    assert not succeeded(whole | {"accepted": []})
    assert not succeeded(whole | {"accepted": [one for one in whole["accepted"] if one["campaign"] == "b"]})
    assert not succeeded(whole | {"rejected": {"NO_GAIN": 9, "LOSSY": 2}})
