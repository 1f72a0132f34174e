"""Compressed files of a report: read as the plain ones, or refused."""

from __future__ import annotations

import contextlib
import hashlib
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import DataError
from harness.packed import is_stored, packed, stored_bytes, stored_digest
from harness.records import PromptLine
from harness.storage import read_lines, write_lines
from tests.harness.fakes import make_prompts

TEXT = b"one line\n" * 40


def compress(path: Path, data: bytes) -> Path:
    """Put the compressed twin of a file that is not there."""
    twin = packed(path)
    twin.write_bytes(lzma.compress(data))
    return twin


def test_lines_are_read_from_the_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    write_lines(path, make_prompts(5))
    plain = path.read_bytes()
    compress(path, plain)
    path.unlink()
    assert is_stored(path)
    assert stored_digest(path) == hashlib.sha256(plain).hexdigest()
    assert tuple(read_lines(path, PromptLine)) == make_prompts(5)


def test_the_plain_file_goes_first(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"plain")
    compress(path, TEXT)
    assert stored_bytes(path) == b"plain"


def test_a_file_that_is_not_there_is_told_by_its_own_name(tmp_path: Path) -> None:
    assert not is_stored(tmp_path / "x")
    with pytest.raises(DataError, match=r"cannot read .*/x: No such file"):
        list(read_lines(tmp_path / "x", PromptLine))


@given(at=st.integers(0), bit=st.integers(0, 7))
def test_a_changed_bit_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("packed") / "x"
    twin = compress(path, TEXT)
    data = bytearray(twin.read_bytes())
    data[at % len(data)] ^= 1 << bit
    twin.write_bytes(data)
    found = None
    with contextlib.suppress(DataError):
        found = stored_bytes(path)
    assert found in {None, TEXT}


@pytest.mark.parametrize("data", [lzma.compress(TEXT)[:-9], lzma.compress(TEXT) + b"more", b""])
def test_a_cut_or_longer_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    packed(path).write_bytes(data)
    with pytest.raises(DataError, match="cut short"):
        stored_bytes(path)


def test_no_more_is_unpacked_than_a_report_may_hold(tmp_path: Path) -> None:
    compress(tmp_path / "x", TEXT)
    assert stored_bytes(tmp_path / "x", most=len(TEXT)) == TEXT
    with pytest.raises(DataError, match="more than"):
        stored_bytes(tmp_path / "x", most=len(TEXT) - 1)
