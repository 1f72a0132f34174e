"""What may be done to a run folder in each of its states."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.folder import Mode, claim, clear, finish
from harness.paths import RunFolder
from tests.harness.fakes import make_job


def test_a_fresh_folder_is_claimed_and_an_unfinished_one_can_be_resumed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    claim(folder, make_job(), "new")
    (folder.partial / "launch-0.jsonl").write_text("kept")
    claim(folder, make_job(), "resume")
    assert (folder.partial / "launch-0.jsonl").read_text() == "kept"


@pytest.mark.parametrize(
    ("mode", "job_tokens", "told"),
    [("new", 5, "holds an unfinished run; --resume"), ("resume", 6, "run of another plan")],
)
def test_an_unfinished_run_is_neither_overwritten_nor_mixed(
    tmp_path: Path, mode: Mode, job_tokens: int, told: str
) -> None:
    folder = RunFolder(tmp_path)
    claim(folder, make_job(max_tokens=5), "new")
    with pytest.raises(UsageError, match=told):
        claim(folder, make_job(max_tokens=job_tokens), mode)


def test_resume_without_a_run_and_a_finished_report_are_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(UsageError, match="holds no unfinished run"):
        claim(folder, make_job(), "resume")
    folder.report_json.write_text("{}")
    with pytest.raises(UsageError, match="holds a report"):
        claim(folder, make_job(), "new")


def test_overwrite_removes_what_a_run_writes_and_nothing_else(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    claim(folder, make_job(), "new")
    (folder.partial / "launch-0.jsonl").touch()
    folder.responses.touch()
    mine = tmp_path / "notes.txt"
    mine.touch()
    claim(folder, make_job(max_tokens=6), "overwrite")
    assert mine.exists()
    assert not folder.responses.exists()
    assert list(folder.partial.iterdir()) == []
    finish(folder)
    clear(folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt"]
