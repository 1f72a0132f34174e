"""The format's numbers, and the arrays of one packed tensor. The README draws them, byte by byte.

A tensor is seen as [N, K]: leading dimensions folded into N rows, the last one K columns. A row is
cut into Q = ceil(K / 64) groups; padding columns hold +0. All arrays are little endian.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

VERSION = 1
GROUP = 64  # columns that share a palette
HALF = GROUP // 2  # columns j and j + HALF of a group share a byte of `code`
CLASSES = 8  # entries of a palette, each the 7 high bits of an exponent
MAX_PALETTES = 255
RAW_ROW = 255  # palette number of every group of a raw row

MIN_WEIGHTS = 1 << 16  # smaller tensors stay bf16
MIN_COLUMNS = 256  # and so do shorter rows
MAX_SHARE = 0.85  # and whatever would take more than this share of its bf16 bytes

SUFFIXES = ("lo", "code", "pidx", "ptab", "rawrow", "rawval")
DTYPES = {"lo": "U8", "code": "U8", "pidx": "U8", "ptab": "U8", "rawrow": "U32", "rawval": "BF16"}
NUMPY: Mapping[str, np.dtype[Any]] = {"U8": np.dtype("u1"), "U32": np.dtype("<u4"), "BF16": np.dtype("<u2")}

Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.uint16]  # bf16 patterns
Rows = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The arrays of one packed tensor.

    Attributes:
        shape: of the bf16 tensor.
        lo: [N, 64 Q], low byte of each weight.
        code: [N, 32 Q], two nibbles a byte: sign << 3 | index into the group's palette.
        pidx: [N, Q], palette number of each group, or `RAW_ROW`.
        ptab: [P, 8], the palettes.
        rawrow: [R], ascending numbers of the raw rows.
        rawval: [R, K], their weights.
    """

    shape: tuple[int, ...]
    lo: Bytes
    code: Bytes
    pidx: Bytes
    ptab: Bytes
    rawrow: Rows
    rawval: Bits

    def arrays(self) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        """Suffix and array, in the order in which they are hashed."""
        for suffix in SUFFIXES:
            yield suffix, getattr(self, suffix)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for _, array in self.arrays())


def rows_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """N and K of a tensor of this shape."""
    return math.prod(shape[:-1]), shape[-1] if shape else 1


def groups(columns: int) -> int:
    """Q, the groups of a row."""
    return -(-columns // GROUP)


def array_shapes(shape: tuple[int, ...], palettes: int, raw_rows: int) -> dict[str, tuple[int, ...]]:
    """Shape of every array: a function of the tensor's shape, P and R only."""
    rows, columns = rows_columns(shape)
    q = groups(columns)
    return {
        "lo": (rows, GROUP * q),
        "code": (rows, HALF * q),
        "pidx": (rows, q),
        "ptab": (palettes, CLASSES),
        "rawrow": (raw_rows,),
        "rawval": (raw_rows, columns),
    }


def stored_bytes(shape: tuple[int, ...], palettes: int, raw_rows: int) -> int:
    """Bytes of all arrays of a packed tensor."""
    return sum(
        math.prod(size) * NUMPY[DTYPES[suffix]].itemsize
        for suffix, size in array_shapes(shape, palettes, raw_rows).items()
    )


def reason_to_keep(dtype: str, shape: tuple[int, ...]) -> str | None:
    """Why a tensor is stored as it is, as far as its header tells; None if it may be packed."""
    rows, columns = rows_columns(shape)
    if dtype != "BF16":
        return f"{dtype}, not BF16"
    if len(shape) < 2:
        return "fewer than two dimensions"
    if columns < MIN_COLUMNS:
        return f"rows shorter than {MIN_COLUMNS}"
    if rows * columns < MIN_WEIGHTS:
        return f"fewer than {MIN_WEIGHTS} weights"
    return None


def reason_of_size(shape: tuple[int, ...], palettes: int, raw_rows: int) -> str | None:
    """Why a tensor is stored as it is, once its palettes are known; None if packing pays."""
    rows, columns = rows_columns(shape)
    packed = stored_bytes(shape, palettes, raw_rows)
    if packed <= MAX_SHARE * 2 * rows * columns:
        return None
    bits = 8 * packed / (rows * columns)
    return f"would take {bits:.2f} bits a weight, above {16 * MAX_SHARE:.1f} ({raw_rows} raw rows)"
