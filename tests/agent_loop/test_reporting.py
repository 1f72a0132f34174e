from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from agent_loop.demo.__main__ import succeeded, together
from agent_loop.reporting import write_report
from agent_loop.watching import EventTail, plain
from harness.cli import main
from harness.errors import EXIT_OK, EXIT_USAGE
from tests.agent_loop.simulated import Host, Stage
from tests.agent_loop.test_controller import Scripted, candidate, width


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
    write_report(stage.loop, controller.database, tmp_path, None)
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


def test_the_page_escapes_what_an_explorer_wrote(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert plain("a\x1b[2Jb\n") == "a [2Jb "


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
    assert "1 confirm slots used" in capsys.readouterr().out
    assert main(["loop", "review", str(folder)]) == EXIT_OK
    told = capsys.readouterr().out
    assert "confirm: ACCEPT" in told
    assert "1 candidates were refused for what they are" in told
    assert "\x1b" not in told
    assert main(["loop", "memory", "--memory", str(folder / "m.sqlite")]) == EXIT_OK
    assert main(["loop", "status", str(folder / "nowhere")]) == EXIT_USAGE
    assert "give the folder of a campaign that was run" in capsys.readouterr().err


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
