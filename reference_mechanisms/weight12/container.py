"""A packed safetensors file, read: nothing is decoded before its bytes are proven."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reference_mechanisms.weight12 import palette
from reference_mechanisms.weight12.decode import decode_blocks
from reference_mechanisms.weight12.digests import check_seal, sha256
from reference_mechanisms.weight12.errors import CorruptError
from reference_mechanisms.weight12.layout import (
    DTYPES,
    GROUP,
    HALF,
    NUMPY,
    RAW_ROW,
    SUFFIXES,
    Bytes,
    Packed,
    array_shapes,
    groups,
    rows_columns,
)
from reference_mechanisms.weight12.manifest import Manifest, from_metadata
from reference_mechanisms.weight12.tensorfile import TensorFile, open_file

MEND = "get the file again"
CHUNK = 1 << 24
BF16_BYTES = 2

Heard = Callable[[str, int], None]  # tensor, bytes of bf16 done


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A packed file whose header is sealed and fits its manifest; tensors are read on demand."""

    file: TensorFile
    manifest: Manifest
    seal: str

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self.file.path

    def packed(self, name: str, *, check: bool = True) -> Packed:
        """The arrays of a packed tensor, mapped from the file.

        Args:
            name: of the tensor in the source.
            check: compare the arrays with their digest. The structure is held in any case: a decoder
                may index tables without looking.

        Raises:
            CorruptError: naming the tensor and the reason.
        """
        entry = self.manifest.tensors[name]
        if entry.codes is None:
            raise self._corrupt(name, f"it is stored as it was ({entry.kept}); read it as such")
        sizes = array_shapes(entry.shape, entry.codes.palettes, entry.codes.raw_rows)
        arrays = {
            suffix: self.file.read(f"{name}_{suffix}").view(NUMPY[DTYPES[suffix]]).reshape(sizes[suffix])
            for suffix in SUFFIXES
        }
        if check and sha256(arrays.values()) != entry.codes.sha256:
            raise self._corrupt(name, "the stored bytes do not have their sha256")
        packed = Packed(shape=entry.shape, **arrays)
        reason = fault(packed)
        if reason is not None:
            raise self._corrupt(name, reason)
        return packed

    def source_bytes(self, name: str) -> Iterator[Bytes]:
        """The bytes of a tensor as they stood in the source, chunk by chunk.

        Raises:
            CorruptError: naming the tensor; after the last chunk if the whole is not the source's.
        """
        entry, found = self.manifest.tensors[name], hashlib.sha256()
        chunks = self._decoded(name) if entry.codes is not None else _chunks(self.file.read(name))
        for chunk in chunks:
            found.update(chunk.data)
            yield chunk
        if found.hexdigest() != entry.sha256:
            raise self._corrupt(name, "it does not give the source's bytes: their sha256 differs")

    def faults(self, heard: Heard, *, quick: bool = False) -> Iterator[str]:
        """What is wrong with the tensors, one line each.

        Args:
            heard: told of each tensor as it is done.
            quick: hold packed arrays against their digests only, decode nothing.
        """
        for name, entry in self.manifest.tensors.items():
            try:
                if entry.codes is not None and quick:
                    self.packed(name)
                else:
                    for _ in self.source_bytes(name):
                        pass
            except CorruptError as error:
                yield str(error)
            heard(name, self.source_size(name))

    def source_size(self, name: str) -> int:
        """Bytes of a tensor in the source."""
        entry = self.manifest.tensors[name]
        if entry.codes is not None:
            return BF16_BYTES * math.prod(entry.shape)
        slot = self.file.slots[name]
        return slot.end - slot.begin

    def _decoded(self, name: str) -> Iterator[Bytes]:
        for _, block in decode_blocks(self.packed(name)):
            yield np.ascontiguousarray(block).reshape(-1).view(np.uint8)

    def _corrupt(self, name: str, reason: str) -> CorruptError:
        return CorruptError(f"{self.path}: tensor {name}: {reason}; {MEND}")


def open_packed(path: Path) -> PackedFile:
    """Open a packed file and hold its header: seal, version, manifest, one array for each name.

    Raises:
        WeightError: it cannot be read.
        CorruptError: it is truncated, changed, of another version, not packed, or lacks a tensor.
    """
    file = open_file(path)
    manifest = from_metadata(file.metadata, str(path))
    try:
        seal = check_seal(file.text)
    except ValueError as error:
        raise CorruptError(f"{path}: the header cannot be trusted: {error}; {MEND}") from None
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, entry in manifest.tensors.items():
        if entry.codes is None:
            expected[name] = entry.dtype, entry.shape
        else:
            sizes = array_shapes(entry.shape, entry.codes.palettes, entry.codes.raw_rows)
            expected |= {f"{name}_{suffix}": (DTYPES[suffix], sizes[suffix]) for suffix in SUFFIXES}
    stored = {name: (slot.dtype, slot.shape) for name, slot in file.slots.items()}
    for name, found in expected.items():
        if name not in stored:
            raise CorruptError(f"{path}: tensor {name} is missing; {MEND}")
        if stored[name] != found:
            raise CorruptError(f"{path}: tensor {name} is {stored[name]}, the manifest says {found}; {MEND}")
    unknown = next((name for name in stored if name not in expected), None)
    if unknown is not None:
        raise CorruptError(f"{path}: tensor {unknown} is not in the manifest; {MEND}")
    return PackedFile(file, manifest, seal)


def fault(packed: Packed) -> str | None:
    """What no encoder would have written, if anything; decoders and kernels rely on its absence."""
    ascending = not packed.rawrow.size or (
        int(packed.rawrow[-1]) < len(packed.pidx) and bool((packed.rawrow[1:] > packed.rawrow[:-1]).all())
    )
    if not ascending:
        return "its raw rows are not ascending row numbers"
    if not palette.is_canonical(packed.ptab):
        return "its palettes are not sorted sets of exponent classes"
    raw = np.zeros(len(packed.pidx), np.bool_)
    raw[packed.rawrow] = True
    return _fault_of_rows(packed, raw)


def _fault_of_rows(packed: Packed, raw: npt.NDArray[np.bool_]) -> str | None:
    if ((packed.pidx == RAW_ROW) != raw[:, None]).any():
        return "its raw rows are not those that its palette numbers mark"
    if np.where(raw[:, None], 0, packed.pidx).max(initial=0) >= len(packed.ptab):
        return "a palette number is beyond its palettes"
    if packed.lo[raw].any() or packed.code[raw].any():
        return "a raw row has codes"
    columns = rows_columns(packed.shape)[1]
    padding = GROUP * groups(columns) - columns
    if padding and not _pads_with_zero(packed, padding, raw):
        return "its padding is not +0"
    return None


def _pads_with_zero(packed: Packed, padding: int, raw: npt.NDArray[np.bool_]) -> bool:
    """Whether the last `padding` columns of each row decode to +0, by the first class of its palette."""
    last = packed.code[:, -HALF:]
    nibbles = np.concatenate((last & 0x0F, last >> 4), axis=1)[:, GROUP - padding :]
    first = packed.ptab[packed.pidx[~raw, -1], 0]
    return not (nibbles.any() or packed.lo[:, -padding:].any() or first.any())


def _chunks(data: Bytes) -> Iterator[Bytes]:
    for start in range(0, data.size, CHUNK):
        yield data[start : start + CHUNK]
