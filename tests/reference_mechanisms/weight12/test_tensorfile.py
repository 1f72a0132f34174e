from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from reference_mechanisms.weight12.errors import CorruptError, WeightError
from reference_mechanisms.weight12.tensorfile import open_file, place

A = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
B = {"dtype": "BF16", "shape": [2, 2], "data_offsets": [4, 12]}


def write(path: Path, header: object, data: bytes = b"abcdefghijkl") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_files_of_the_reference_writer_are_read_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    one, two = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(5, dtype=np.uint8)
    save_file({"two": two, "one": one, "none": np.empty((0, 3), np.float32)}, tmp_path / "f", {"k": "v"})
    file = open_file(tmp_path / "f")
    assert file.metadata == {"k": "v"}
    assert file.size == (tmp_path / "f").stat().st_size
    begins = [slot.begin for slot in file.slots.values()]
    assert begins == sorted(begins)
    assert file.slots["one"].shape == (2, 3)
    assert np.array_equal(file.read("one").view(np.float32).reshape(2, 3), one)
    assert file.read("two").tolist() == two.tolist()
    assert file.read("none").size == 0


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"{", "the header is not JSON"),
        (b"\xff\xfe", "the header is not JSON"),
        (b"[" * 100_000, "the header is not JSON"),
        ([], "must be a JSON object"),
        ({"__metadata__": {"k": 1}, "a": A, "b": B}, "must map names to strings"),
        ({"a": A, "b": {**B, "shape": [-2, -2]}}, "tensor b has a broken header entry"),
        ({"a": A, "b": {**B, "shape": [True, 4]}}, "tensor b has a broken header entry"),
        ({"a": A, "b": {**B, "data_offsets": [12, 4]}}, "tensor b has a broken header entry"),
        ({"a": A, "b": {**B, "data_offsets": [4, 12.0]}}, "tensor b has a broken header entry"),
        ({"a": A, "b": 3}, "tensor b has a broken header entry"),
        ({"a": A, "b": {**B, "shape": [2, 3]}}, "tensor b of BF16 [2, 3] does not fill its bytes 4-12"),
        ({"a": A, "b": {**B, "data_offsets": [3, 11]}}, "bytes before tensor b overlap"),
        ({"a": {**A, "shape": [3], "data_offsets": [0, 3]}, "b": B}, "bytes before tensor b overlap"),
        ({"a": A, "b": {**B, "shape": [9], "data_offsets": [4, 22]}}, "tensor b is cut off at byte 12 of 22"),
        ({"a": A}, "8 bytes after the last tensor belong to nothing"),
        ({}, "12 bytes after the last tensor belong to nothing"),
    ],
)
def test_a_broken_file_is_refused_with_the_reason(tmp_path: Path, header: object, reason: str) -> None:
    path = write(tmp_path / "f", header)
    with pytest.raises(CorruptError, match=re.escape(reason)) as caught:
        open_file(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"1234567", b"\xff" * 8, b"\xff" * 20, b"\x09" + b"\0" * 7 + b"{}"])
def test_a_cut_header_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(CorruptError, match="cut off"):
        open_file(tmp_path / "f")


def test_a_file_that_is_not_there_or_shrinks_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=re.escape(f"cannot read {tmp_path / 'f'}: No such file")):
        open_file(tmp_path / "f")
    with pytest.raises(WeightError, match=r"cannot read .*: Is a directory"):
        open_file(tmp_path)
    file = open_file(write(tmp_path / "f", {"a": A, "b": B}))
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(WeightError, match="cannot read tensor b"):
        file.read("b")


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 5000), max_size=12))
def test_placed_arrays_touch_and_are_aligned_by_their_size(sizes: dict[str, int]) -> None:
    slots = place({name: ("U8", (size,), size) for name, size in sizes.items()})
    end = 0
    for name, slot in slots.items():
        assert slot.begin == end
        end = slot.end
        assert slot.end - slot.begin == sizes[name]
        assert slot.begin % math.gcd(sizes[name], 64) == 0
    assert end == sum(sizes.values())
