"""safetensors files, strictly: every byte belongs to the header or to exactly one tensor."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reference_mechanisms.weight12.errors import CorruptError, WeightError
from reference_mechanisms.weight12.layout import Bytes

METADATA = "__metadata__"
PREFIX = 8  # bytes of the header's length
ALIGN = 64  # of the first tensor in files we write
MAX_HEADER = 100_000_000  # as in the reference reader
ITEM_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor in a file: `begin` and `end` count from the first byte after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A file's header, and its tensors in the order of their bytes."""

    path: Path
    text: bytes  # the header, as it stands in the file
    metadata: Mapping[str, str]
    slots: Mapping[str, Slot]

    @property
    def start(self) -> int:
        """Offset of the first tensor in the file."""
        return PREFIX + len(self.text)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.start + max((slot.end for slot in self.slots.values()), default=0)

    def read(self, name: str) -> Bytes:
        """The bytes of a tensor, mapped from the file.

        Raises:
            WeightError: the file can no longer be read.
        """
        slot = self.slots[name]
        if slot.begin == slot.end:
            return np.empty(0, np.uint8)
        try:
            mapped = np.memmap(self.path, np.uint8, "r", self.start + slot.begin, (slot.end - slot.begin,))
        except (OSError, ValueError) as error:
            raise WeightError(f"cannot read tensor {name} of {self.path}: {error}") from None
        return mapped.view(np.ndarray)


def open_file(path: Path) -> TensorFile:
    """Read and check the header of a safetensors file.

    Raises:
        WeightError: it cannot be read.
        CorruptError: it is not safetensors, is truncated, or has bytes that belong to no tensor.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(PREFIX), "little")
            text = file.read(length) if length <= MAX_HEADER else b""
            size = file.seek(0, 2)
    except OSError as error:
        raise WeightError(f"cannot read {path}: {error.strerror}") from None
    if len(text) != length or size < PREFIX:
        raise CorruptError(f"{path}: the header is cut off or its length is wrong; get the file again")
    header = _parse(path, text)
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CorruptError(f"{path}: {METADATA} must map names to strings; get the file again")
    slots = {name: _slot(path, name, entry) for name, entry in header.items()}
    ordered = dict(sorted(slots.items(), key=lambda item: (item[1].begin, item[1].end)))
    _check_cover(path, ordered, size - PREFIX - length)
    return TensorFile(path, text, metadata, ordered)


def header_document(metadata: Mapping[str, str], slots: Mapping[str, Slot]) -> dict[str, object]:
    """The document of a header."""
    entries = {
        name: {"dtype": slot.dtype, "shape": list(slot.shape), "data_offsets": [slot.begin, slot.end]}
        for name, slot in slots.items()
    }
    return {METADATA: dict(metadata), **entries}


def place(stored: Mapping[str, tuple[str, tuple[int, ...], int]]) -> dict[str, Slot]:
    """Slots for arrays (type, shape, bytes), without gaps, each at a good address.

    Arrays whose size is divisible by a larger power of two come first, so each starts at a multiple of
    the largest power of two, up to 64, that divides its own size.
    """
    slots: dict[str, Slot] = {}
    begin = 0
    for name in sorted(stored, key=lambda name: (-math.gcd(stored[name][2], ALIGN), name)):
        dtype, shape, size = stored[name]
        slots[name] = Slot(dtype, shape, begin, begin + size)
        begin += size
    return slots


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{path}: the header is not JSON ({error}); get the file again") from None
    if not isinstance(header, dict):
        raise CorruptError(f"{path}: the header must be a JSON object; get the file again")
    return header


def _slot(path: Path, name: str, entry: object) -> Slot:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end]} if (
            all(type(size) is int and 0 <= size < 2**63 for size in (*shape, begin, end)) and begin <= end
        ):
            slot = Slot(dtype, tuple(shape), begin, end)
        case _:
            raise CorruptError(f"{path}: tensor {name} has a broken header entry; get the file again")
    bits = ITEM_BITS.get(slot.dtype)
    if bits is not None and math.prod(slot.shape) * bits != 8 * (slot.end - slot.begin):
        raise CorruptError(
            f"{path}: tensor {name} of {slot.dtype} {list(slot.shape)} does not fill its bytes "
            f"{slot.begin}-{slot.end}; get the file again"
        )
    return slot


def _check_cover(path: Path, slots: Mapping[str, Slot], size: int) -> None:
    end = 0
    for name, slot in slots.items():
        if slot.begin != end:
            raise CorruptError(f"{path}: bytes before tensor {name} overlap or belong to nothing")
        end = slot.end
        if end > size:
            raise CorruptError(f"{path}: tensor {name} is cut off at byte {size} of {end}")
    if end != size:
        raise CorruptError(f"{path}: {size - end} bytes after the last tensor belong to nothing")
