"""Weights in the order in which the kernels read them: units of 32 rows x 64 columns (see unit.cuh).

The bytes are only moved, and nibbles regrouped: whatever the format holds exactly, this holds exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.schedule import STRIP, TILE, Split, split
from reference_mechanisms.weight12.layout import CLASSES, HALF

PALETTES = 256  # entries of the table that a kernel copies; the last is that of raw rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arranged:
    """A matrix [rows, columns] on its device.

    Attributes:
        rows: N, without padding.
        columns: K.
        split: how it is divided; for `raw_rows`, that of the whole matrix but for its own row count.
        units: bytes [strips, tiles, unit].
        palettes: [256, 8] bytes; None if the units hold bf16.
        row_of: int32 [rows], output column of each row; None if its own number.
        raw_rows: rows that the packed units do not hold, as bf16 units.
    """

    rows: int
    columns: int
    split: Split
    units: Tensor
    palettes: Tensor | None = None
    row_of: Tensor | None = None
    raw_rows: Arranged | None = None

    @property
    def raw(self) -> bool:
        """Whether the units hold bf16."""
        return self.palettes is None

    @property
    def stored_bytes(self) -> int:
        """Bytes that one product reads."""
        more = self.raw_rows.stored_bytes if self.raw_rows is not None else 0
        return self.units.numel() + (0 if self.palettes is None else self.palettes.numel()) + more


def arrange(arrays: Mapping[str, Tensor], columns: int) -> Arranged:
    """The packed arrays of a matrix, by their suffix in the format, on any device.

    Args:
        arrays: lo, code, pidx, ptab, rawrow and rawval.
        columns: K.
    """
    lo, code, pidx = arrays["lo"], arrays["code"], arrays["pidx"]
    rows, q = pidx.shape
    found = split(rows, columns)
    strips = found.rows // STRIP
    low = _padded(lo, found.rows).reshape(strips, 4, 8, q, 4, 16).permute(0, 3, 1, 2, 4, 5)
    words = _padded(_words(code), found.rows).reshape(strips, 2, 2, 8, q, 4, 8).permute(0, 4, 1, 3, 5, 2, 6)
    numbers = _padded(pidx, found.rows).reshape(strips, 4, 8, q).permute(0, 3, 2, 1)
    parts = [part.reshape(strips, q, -1) for part in (low, words, numbers)]
    table = torch.zeros((PALETTES, CLASSES), dtype=torch.uint8, device=lo.device)
    table[: len(arrays["ptab"])] = arrays["ptab"]
    raw_rows = None
    if len(arrays["rawrow"]):
        row_of = arrays["rawrow"].to(torch.int32)
        raw_rows = arrange_raw(arrays["rawval"], cluster=found.cluster, row_of=row_of)
    return Arranged(
        rows=rows, columns=columns, split=found, units=torch.cat(parts, 2), palettes=table, raw_rows=raw_rows
    )


def arrange_raw(weight: Tensor, *, cluster: int | None = None, row_of: Tensor | None = None) -> Arranged:
    """A bf16 matrix [N, K] for the twin.

    Args:
        weight: the matrix.
        cluster: cut sums as for a cluster of this size; by default that of the matrix itself.
        row_of: int32 [N], output column of each row.
    """
    rows, columns = weight.shape
    found = split(rows, columns)
    if cluster is not None:
        found = Split(rows=found.rows, tiles=found.tiles, cluster=cluster)
    bits = weight.view(torch.int16)
    padded = torch.nn.functional.pad(bits, (0, found.tiles * TILE - columns, 0, found.rows - rows))
    strips = found.rows // STRIP
    units = padded.reshape(strips, 4, 8, found.tiles, 4, 2, 8).permute(0, 3, 1, 5, 2, 4, 6)
    units = units.contiguous().view(torch.uint8).reshape(strips, found.tiles, -1)
    return Arranged(rows=rows, columns=columns, split=found, units=units, row_of=row_of)


def _padded(array: Tensor, rows: int) -> Tensor:
    """More rows of zeros; only the last group of rows is ever partly padding."""
    if rows == len(array):
        return array
    fill = array.new_zeros((rows - len(array), *array.shape[1:]))
    return torch.cat((array, fill))


def _words(code: Tensor) -> Tensor:
    """Code words of eight neighbours [N, 32 Q bytes]: classes in nibbles, signs in their spare bits.

    The sign of weight i < 4 is at bit 8i + 7, of weight i + 4 at bit 8i + 3.
    """
    rows, width = code.shape
    out = torch.empty((rows, width), dtype=torch.uint8, device=code.device)
    step = max(1, (1 << 26) // max(width, 1))
    for start in range(0, rows, step):
        pair = code[start : start + step].reshape(-1, HALF)
        nibbles = torch.cat((pair & 0x0F, pair >> 4), 1).reshape(-1, 8).int()
        word = torch.zeros_like(nibbles[:, 0])
        for i in range(8):
            word |= (nibbles[:, i] & 7) << 4 * i | (nibbles[:, i] >> 3) << (
                8 * i + 7 if i < 4 else 8 * i - 29
            )
        out[start : start + step] = word.view(torch.uint8).reshape(-1, width)
    return out
