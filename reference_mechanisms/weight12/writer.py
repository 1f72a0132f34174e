"""A safetensors file packed: encoded tensor by tensor, proven by decoding, laid out, written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reference_mechanisms.weight12.container import CHUNK, Heard
from reference_mechanisms.weight12.decode import decode_blocks
from reference_mechanisms.weight12.digests import check_seal, fold64, sealed, sha256
from reference_mechanisms.weight12.encode import fill, make_plan
from reference_mechanisms.weight12.errors import WeightError
from reference_mechanisms.weight12.layout import (
    DTYPES,
    Bits,
    Bytes,
    Packed,
    reason_of_size,
    reason_to_keep,
    rows_columns,
)
from reference_mechanisms.weight12.manifest import Codes, Entry, Manifest, to_metadata
from reference_mechanisms.weight12.tensorfile import (
    ALIGN,
    PREFIX,
    TensorFile,
    header_document,
    place,
)


@dataclass(frozen=True, slots=True)
class Part:
    """A stored array: its type and shape in the header, and its data."""

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Draft:
    """A packed file before it is written: its header, and its arrays in the order of their bytes."""

    header: bytes
    arrays: tuple[npt.NDArray[np.generic], ...]
    seal: str
    manifest: Manifest

    def chunks(self) -> Iterator[Bytes]:
        """All bytes of the file."""
        yield np.frombuffer(len(self.header).to_bytes(PREFIX, "little") + self.header, np.uint8)
        for array in self.arrays:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            for start in range(0, data.size, CHUNK):
                yield data[start : start + CHUNK]


def pack_file(source: TensorFile, heard: Heard) -> Draft:
    """Pack the tensors of a file. The packed arrays are held in memory, the others stay mapped.

    Args:
        source: an open safetensors file.
        heard: told of each tensor as it is done.

    Raises:
        WeightError: the file cannot be read, changes meanwhile, or two tensors want one name.
    """
    entries: dict[str, Entry] = {}
    parts: dict[str, Part] = {}
    whole = hashlib.sha256(len(source.text).to_bytes(PREFIX, "little") + source.text)
    for name in source.slots:
        data = source.read(name)
        entries[name], own = _packed(source, name, data)
        taken = next((stored for stored in own if stored in parts), None)
        if taken is not None:
            raise WeightError(f"{source.path}: two tensors want the name {taken}; rename one")
        parts |= own
        whole.update(data.data)
        heard(name, data.size)
    header = source.text.decode()
    manifest = Manifest(tensors=entries, source_header=header, source_sha256=whole.hexdigest())
    slots = place({name: (part.dtype, part.shape, part.data.nbytes) for name, part in parts.items()})
    text = sealed(header_document(to_metadata(manifest), slots), ALIGN, PREFIX)
    return Draft(text, tuple(parts[name].data for name in slots), check_seal(text), manifest)


def _packed(source: TensorFile, name: str, data: Bytes) -> tuple[Entry, dict[str, Part]]:
    """Entry and stored arrays of one tensor."""
    slot = source.slots[name]
    digest = sha256([data])
    reason = reason_to_keep(slot.dtype, slot.shape)
    if reason is None:
        bits: Bits = data.view("<u2").reshape(slot.shape)
        plan = make_plan(bits)
        palettes, raw_rows = max(1, len(plan.palettes)), len(plan.raw_rows)
        reason = reason_of_size(slot.shape, palettes, raw_rows)
    if reason is not None:
        entry = Entry(dtype=slot.dtype, shape=slot.shape, sha256=digest, kept=reason)
        return entry, {name: Part(slot.dtype, slot.shape, data)}
    packed = fill(bits, plan)
    _prove(f"{source.path}: tensor {name}", packed, bits)
    stored = sha256(array for _, array in packed.arrays())
    codes = Codes(palettes=palettes, raw_rows=raw_rows, sha256=stored, fold64=fold64(bits))
    parts = {
        f"{name}_{suffix}": Part(DTYPES[suffix], array.shape, array) for suffix, array in packed.arrays()
    }
    return Entry(dtype=slot.dtype, shape=slot.shape, sha256=digest, codes=codes), parts


def _prove(where: str, packed: Packed, bits: Bits) -> None:
    """Decode and compare every weight before anything is written."""
    flat = bits.reshape(rows_columns(bits.shape))
    for start, block in decode_blocks(packed):
        if not np.array_equal(block, flat[start : start + len(block)]):
            raise WeightError(f"{where} does not decode to itself; did the file change? If not, report a bug")
