"""Rows of a packed matrix back to bf16, in Triton: for products of many tokens and for embedding look-ups.

One kernel for the arrays of the format, one for the units that `arrange` makes for the streaming kernels.
Both only move and look up bits. They run on any device of Triton's, and on a CPU in its interpreter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.weight12.arrange import Arranged
from reference_mechanisms.weight12.planes import Planes

ROWS = 32  # of a program, each with 64 columns


def decode_planes(matrix: Planes, rows: Tensor | range, slots: Tensor | None, out: Tensor) -> Tensor:
    """Write some rows of a matrix.

    Args:
        matrix: the packed arrays.
        rows: their numbers [n], int64, or a range of step 1.
        slots: `matrix.raw_slots()`; None if it has no raw rows.
        out: [n, K] bf16, contiguous.
    """
    q = matrix.pidx.shape[1]
    ids, start = _ids(rows)
    _planes_kernel[_blocks(len(rows), q)](
        out.view(torch.int16),
        matrix.lo,
        matrix.code,
        matrix.pidx,
        matrix.ptab.view(torch.int64),
        matrix.rawval,
        slots,
        ids,
        start,
        len(rows),
        matrix.columns,
        q,
        has_ids=ids is not None,
        has_raw=slots is not None,
        block=ROWS,
    )
    return out


def decode_arranged(matrix: Arranged, rows: Tensor | range, out: Tensor) -> Tensor:
    """Write some rows of a matrix in the units of `arrange`; arguments as in `decode_planes`.

    Raises:
        ValueError: the units hold bf16.
    """
    if matrix.numbers is None or matrix.palettes is None:
        raise ValueError("these units hold bf16, not packed weights")
    tiles = matrix.units.shape[1]
    ids, start = _ids(rows)
    _units_kernel[_blocks(len(rows), tiles)](
        out.view(torch.int16),
        matrix.units,
        matrix.units.view(torch.int32),
        matrix.numbers,
        matrix.palettes.view(torch.int64),
        matrix.highs,
        ids,
        start,
        len(rows),
        matrix.columns,
        tiles,
        has_ids=ids is not None,
        has_raw=matrix.highs is not None,
        block=ROWS,
    )
    return out


def _ids(rows: Tensor | range) -> tuple[Tensor | None, int]:
    return (None, rows.start) if isinstance(rows, range) else (rows, 0)


def _blocks(rows: int, groups: int) -> tuple[int, int]:
    return triton.cdiv(rows, ROWS), groups


@triton.jit
def _planes_kernel(
    out,
    lo,
    code,
    pidx,
    palettes,
    rawval,
    slots,
    ids,
    start,
    count,
    columns,
    q,
    has_ids: tl.constexpr,
    has_raw: tl.constexpr,
    block: tl.constexpr,
):
    at = tl.program_id(0) * block + tl.arange(0, block)
    group = tl.program_id(1)
    inside = at < count
    if has_ids:
        row = tl.load(ids + at, mask=inside, other=0)
    else:
        row = (start + at).to(tl.int64)
    number = tl.load(pidx + row * q + group, mask=inside, other=0).to(tl.int32)
    palette = tl.load(palettes + tl.where(number == 255, 0, number), mask=inside, other=0)
    column = tl.arange(0, 64)
    each = inside[:, None]
    low = tl.load(lo + (row * q + group)[:, None] * 64 + column[None, :], mask=each, other=0).to(tl.int32)
    pair = tl.load(code + (row * q + group)[:, None] * 32 + (column % 32)[None, :], mask=each, other=0)
    nibble = (pair.to(tl.int32) >> tl.where(column < 32, 0, 4)[None, :]) & 15
    found = (palette[:, None] >> ((nibble & 7) * 8).to(tl.int64)).to(tl.int32) & 0x7F
    bits = (((nibble & 8) << 4 | found) << 8 | low).to(tl.int16)
    place = group * 64 + column
    each = each & (place < columns)[None, :]
    if has_raw:
        slot = tl.load(slots + row, mask=inside, other=-1).to(tl.int64)
        own = slot[:, None] * columns + place[None, :]
        raw = tl.load(rawval + own, mask=each & (slot >= 0)[:, None], other=0)
        bits = tl.where((slot >= 0)[:, None], raw, bits)
    tl.store(out + at.to(tl.int64)[:, None] * columns + place[None, :], bits, mask=each)


@triton.jit
def _units_kernel(
    out,
    units,
    words,
    numbers,
    palettes,
    highs,
    ids,
    start,
    count,
    columns,
    tiles,
    has_ids: tl.constexpr,
    has_raw: tl.constexpr,
    block: tl.constexpr,
):
    # Eight neighbouring columns are one code word: element [p, w] is column 8 (p % 8) + w of row p / 8.
    part = tl.arange(0, block * 8)
    at = tl.program_id(0) * block + part // 8
    octet = part % 8
    inside = at < count
    if has_ids:
        row = tl.load(ids + at, mask=inside, other=0)
    else:
        row = (start + at).to(tl.int64)
    unit = row // 32 * tiles + tl.program_id(1)
    piece = row // 16 % 2
    second = row // 8 % 2  # rows 8 to 15 of a piece
    lane = row % 8 * 4 + octet // 2
    number = tl.load(numbers + unit * 32 + row % 8 * 4 + piece * 2 + second, mask=inside, other=0).to(
        tl.int32
    )
    palette = tl.load(palettes + number, mask=inside, other=0)
    first = unit * 3072 + piece * 1536
    at_word = (first + 1024 + lane * 16 + second * 8) // 4
    word = tl.load(words + at_word + octet % 2, mask=inside, other=0)
    w = tl.arange(0, 8)
    each = inside[:, None]
    at_low = first + second * 512 + lane * 16 + octet % 2 * 8
    low = tl.load(units + at_low[:, None] + w[None, :], mask=each, other=0).to(tl.int32)
    chosen = (word[:, None] >> (4 * w)[None, :]) & 7
    sign = (word[:, None] >> tl.where(w < 4, 8 * w + 7, 8 * w - 29)[None, :]) & 1
    high = (palette[:, None] >> (chosen * 8).to(tl.int64)).to(tl.int32) & 0x7F | sign << 7
    column = octet[:, None] * 8 + w[None, :]
    if has_raw:
        raw = (number == 255) & inside
        group = tl.load(words + at_word, mask=raw, other=0).to(tl.int64)  # stands in place of the code words
        own = tl.load(highs + group[:, None] * 64 + column, mask=raw[:, None], other=0).to(tl.int32)
        high = tl.where(raw[:, None], own, high)
    place = tl.program_id(1) * 64 + column
    bits = (high << 8 | low).to(tl.int16)
    tl.store(out + at.to(tl.int64)[:, None] * columns + place, bits, mask=each & (place < columns))
