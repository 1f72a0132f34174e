"""Files of a run: whole or absent, one writer at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import DataError, InvalidRun
from harness.records import PromptLine
from harness.storage import append_lines, locked, read_lines, write_atomic, write_lines
from tests.harness.fakes import make_prompts


def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.jsonl"
    write_lines(path, make_prompts(2))
    append_lines(path, make_prompts(5)[2:])
    assert tuple(read_lines(path, PromptLine)) == make_prompts(5)


def test_a_line_separator_inside_a_text_does_not_split_the_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes('"a\u2028b"\n"c"\n'.encode())
    assert list(read_lines(path, str)) == ["a\u2028b", "c"]


def test_a_torn_last_line_is_dropped_only_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'"whole"\n"tor')
    assert list(read_lines(path, str, drop_torn_tail=True)) == ["whole"]
    with pytest.raises(DataError, match="line 2"):
        list(read_lines(path, str))


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "kept").touch()
    with pytest.raises(InvalidRun, match="cannot write"):
        write_atomic(path, b"new")  # a folder cannot be replaced by a file
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_full_disk_is_told_in_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    """/dev/full refuses every byte with ENOSPC, as a full disk does."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    link = tmp_path / "x.jsonl"
    link.symlink_to("/dev/full")
    with pytest.raises(InvalidRun, match="No space left"):
        append_lines(link, ["x"])


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRun, match="choose another --out"), locked(tmp_path / "file" / "run"):
        pass


def test_a_second_run_in_the_same_folder_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from harness.storage import locked; "
        "from harness.errors import InvalidRun\n"
        "try:\n"
        "    with locked(Path(sys.argv[1])): print('held')\n"
        "except InvalidRun as error: print(error)\n"
    )

    def other() -> str:
        return subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        ).stdout

    with locked(tmp_path):
        assert "in use by another run" in other()
    assert other() == "held\n"
