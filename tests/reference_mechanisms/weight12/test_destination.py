from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from reference_mechanisms.weight12.destination import MARKER, TEMPORARY, destination
from reference_mechanisms.weight12.errors import CallError, WeightError

DATA = [np.arange(5, dtype=np.uint8), np.arange(3, dtype=np.uint8)]


def test_files_appear_whole_and_the_marker_goes_at_the_end(tmp_path: Path) -> None:
    with destination(tmp_path / "a" / "b", "work") as out:
        assert not out.has("f")
        out.write("f", DATA)
        assert out.has("f")
        assert (out.folder / MARKER).read_text() == "work"
        out.finish()
    assert [path.name for path in out.folder.iterdir()] == ["f"]
    assert (out.folder / "f").read_bytes() == b"\0\1\2\3\4\0\1\2"
    assert (out.folder / "f").stat().st_mode & 0o777 == 0o644


def test_a_writer_that_fails_leaves_no_file_and_its_folder_can_be_used_again(tmp_path: Path) -> None:
    def stops() -> Iterator[npt.NDArray[np.uint8]]:
        yield DATA[0]
        raise KeyboardInterrupt

    with destination(tmp_path, "work") as out:
        out.write("one", DATA)
        with pytest.raises(KeyboardInterrupt):
            out.write("two", stops())
    assert sorted(path.name for path in tmp_path.iterdir()) == [MARKER, "one"]
    (tmp_path / f"{TEMPORARY}x").write_bytes(b"left by a killed run")
    with destination(tmp_path, "work") as out:
        assert out.has("one")
        assert not (tmp_path / f"{TEMPORARY}x").exists()


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(CallError, match="is not empty \\(it has mine\\)"), destination(tmp_path, "work"):
        pass
    with pytest.raises(CallError, match="is not a folder"), destination(tmp_path / "mine", "work"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_unfinished_work_on_another_source_is_refused_once_it_has_files(tmp_path: Path) -> None:
    with destination(tmp_path, "one"):
        pass
    with destination(tmp_path, "two") as out:
        out.write("f", DATA)
    with pytest.raises(CallError, match="unfinished work on another source"), destination(tmp_path, "one"):
        pass
    with destination(tmp_path, "two") as out:
        assert out.has("f")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        destination(tmp_path, "work"),
        pytest.raises(CallError, match="is in use by another run"),
        destination(tmp_path, "work"),
    ):
        pass


def test_what_cannot_be_written_is_named_with_the_mend(tmp_path: Path) -> None:
    wanted = (
        re.escape(f"cannot write {tmp_path / 'no/f'}: No such file or directory") + ".*run the same command"
    )
    with destination(tmp_path, "work") as out, pytest.raises(WeightError, match=wanted):
        out.write("no/f", DATA)
    with pytest.raises(WeightError, match="cannot write /proc/none"), destination(Path("/proc/none"), "work"):
        pass
