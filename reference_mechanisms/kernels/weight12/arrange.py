"""Weights in the order in which the kernels read them: units of 32 rows x 64 columns (see unit.cuh).

A unit is two pieces of 16 rows. Palette numbers are kept apart, so that every piece starts on a cache line.

The bytes are only moved, and nibbles regrouped: whatever the format holds exactly, this holds exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.raw_rows import regroup
from reference_mechanisms.kernels.weight12.schedule import STRIP, TILE, Eight, Split, split
from reference_mechanisms.weight12.layout import CLASSES, HALF, RAW_ROW

PALETTES = 256  # entries of the table that a kernel copies; the last is that of raw groups


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arranged:
    """A matrix [rows, columns] on its device.

    Attributes:
        rows: N, without padding.
        columns: K.
        split: how it is divided.
        units: bytes [strips, tiles, 2 pieces].
        numbers: palette numbers [strips, tiles, 32]; None if the units hold bf16.
        palettes: [256, 8] bytes; None if the units hold bf16.
        highs: high bytes of raw groups [G, 64]; None if there are none.
        gated: whether rows of a gate and of what it opens come in turn, see `in_turn`.
        eight: what the units hold, if neither the format nor bf16.
        scales: of such rows, float32 [rows].
    """

    rows: int
    columns: int
    split: Split
    units: Tensor
    numbers: Tensor | None = None
    palettes: Tensor | None = None
    highs: Tensor | None = None
    gated: bool = False
    eight: Eight | None = None
    scales: Tensor | None = None

    @property
    def outputs(self) -> int:
        """Columns of a product."""
        return self.rows // 2 if self.gated else self.rows

    @property
    def raw(self) -> bool:
        """Whether the units hold whole weights, without palettes."""
        return self.palettes is None

    @property
    def stored_bytes(self) -> int:
        """Bytes that one product reads."""
        parts = (self.units, self.numbers, self.palettes, self.highs, self.scales)
        return sum(part.nbytes for part in parts if part is not None)


def in_turn(rows: int) -> Tensor:
    """Order of the rows of a gate and, below them, as many others, in which a gated kernel takes them.

    Args:
        rows: of both, a multiple of 16.
    """
    return torch.arange(rows).view(2, -1, 8).transpose(0, 1).reshape(-1)


def arrange(arrays: Mapping[str, Tensor], columns: int) -> Arranged:
    """The packed arrays of a matrix, by their suffix in the format, on any device.

    Args:
        arrays: lo, code, pidx, ptab, rawrow and rawval.
        columns: K.
    """
    rows, q = arrays["pidx"].shape
    found = split(rows, columns)
    strips = found.rows // STRIP
    lo, code, pidx = (_padded(arrays[name], found.rows) for name in ("lo", "code", "pidx"))
    highs = None
    raw = arrays["rawrow"].long()
    if len(raw):
        groups = regroup(arrays)
        lo, code, pidx = (
            whole.index_copy(0, raw, part)
            for whole, part in ((lo, groups.lo), (code, groups.code), (pidx, groups.numbers))
        )
        highs = groups.highs if len(groups.highs) else None
    words = _words(code)
    if highs is not None:
        where = (pidx == RAW_ROW).nonzero()  # row by row, as `highs`
        index = torch.arange(len(where), dtype=torch.int32, device=code.device)
        words.view(torch.int32).reshape(found.rows, q, 4, 2)[where[:, 0], where[:, 1], :, 0] = index[:, None]
    low = lo.reshape(strips, 2, 2, 8, q, 4, 16).permute(0, 4, 1, 2, 3, 5, 6)
    words = words.reshape(strips, 2, 2, 8, q, 4, 8).permute(0, 4, 1, 3, 5, 2, 6)
    numbers = pidx.reshape(strips, 4, 8, q).permute(0, 3, 2, 1)
    units = torch.cat([part.reshape(strips, q, 2, -1) for part in (low, words)], 3)
    table = torch.zeros((PALETTES, CLASSES), dtype=torch.uint8, device=lo.device)
    table[: len(arrays["ptab"])] = arrays["ptab"]
    return Arranged(
        rows=rows,
        columns=columns,
        split=found,
        units=units.reshape(strips, q, -1),
        numbers=numbers.reshape(strips, q, -1),
        palettes=table,
        highs=highs,
    )


def arrange_raw(weight: Tensor) -> Arranged:
    """A bf16 matrix [N, K] for the twin."""
    rows, columns = weight.shape
    found = split(rows, columns)
    bits = weight.view(torch.int16)
    padded = torch.nn.functional.pad(bits, (0, found.tiles * TILE - columns, 0, found.rows - rows))
    strips = found.rows // STRIP
    units = padded.reshape(strips, 4, 8, found.tiles, 4, 2, 8).permute(0, 3, 1, 5, 2, 4, 6)
    units = units.contiguous().view(torch.uint8).reshape(strips, found.tiles, -1)
    return Arranged(rows=rows, columns=columns, split=found, units=units)


def arrange_eight(weights: Tensor, scales: Tensor, eight: Eight) -> Arranged:
    """Weights in eight bits.

    Args:
        weights: bytes [N, K]; of int8 a sign above seven bits, of fp8 e4m3.
        scales: float32 [N].
        eight: which of them.
    """
    rows, columns = weights.shape
    found = split(rows, columns)
    padded = torch.nn.functional.pad(weights, (0, found.tiles * TILE - columns, 0, found.rows - rows))
    strips = found.rows // STRIP
    units = padded.reshape(strips, 2, 2, 8, found.tiles, 4, 16).permute(0, 4, 1, 2, 3, 5, 6)
    units = units.reshape(strips, found.tiles, -1).contiguous()
    return Arranged(rows=rows, columns=columns, split=found, units=units, eight=eight, scales=scales)


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
