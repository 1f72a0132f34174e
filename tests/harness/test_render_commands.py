"""The pages of a finished run again; its record stays as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.cli import main
from harness.oracle.stored import load_run
from harness.render_commands import told_by_responses

REPORT = Path(__file__).parents[2] / "reports" / "2026-12-02-reproduce-cpu"


def test_the_pages_are_written_anew_and_the_record_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(REPORT, tmp_path / "run"))
    (folder / "report.html").write_text("old")
    (folder / "report.md").unlink()
    assert main(["render", str(folder)]) == 0
    assert (folder / "report.json").read_bytes() == (REPORT / "report.json").read_bytes()
    assert "Speedup over ar on each set" in (folder / "report.html").read_text()
    assert "### Per set" in (folder / "report.md").read_text()
    assert main(["render", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_speedups_by_set_come_from_the_responses_where_the_record_does_not_tell_them() -> None:
    run = load_run(REPORT)
    stock = next(arm for arm in told_by_responses(run).arms if arm.name == "stock")
    assert stock.speedup_by_set is not None
    assert [(one.set_name, one.prompts) for one in stock.speedup_by_set] == [
        ("embedded", 10),
        ("humaneval", 10),
    ]
    times = {
        arm: sum(r.end_ns or 0 for r in run.responses if r.arm == arm and r.prompt_id.startswith("embedded/"))
        for arm in ("ar", "stock")
    }
    assert stock.speedup_by_set[0].speedup.point == pytest.approx(times["ar"] / times["stock"])
