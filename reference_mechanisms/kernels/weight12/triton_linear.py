"""y = x W^T from the arrays of the format, in Triton: any NVIDIA or AMD device, and a CPU in the interpreter.

The order of every sum hangs on (N, K) alone and every block has sixteen tokens, so a token's result is the
same among any others. The twin reads bf16 through the same order; their results are bit-identical. Raw rows
are computed by the twin.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.weight12.layout import groups
from reference_mechanisms.weight12.planes import Planes

BLOCK_M = 16  # one instruction shape for any number of tokens
BLOCK_N = 64
PROGRAMS = 512  # wanted at least, so that memory stays busy
MAX_SPLIT = 8


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Of one product: how its columns are split, in groups of 64."""

    rows: int
    columns: int
    split: int

    @property
    def per_split(self) -> int:
        return -(-groups(self.columns) // self.split)


def linear(x: Tensor, matrix: Planes) -> Tensor:
    """X W^T, rounded to bf16 once.

    Args:
        x: [M, K] bf16 with contiguous rows, on the matrix's device.
        matrix: [N, K].

    Raises:
        ValueError: types or shapes do not fit.
    """
    _check(x, matrix.columns)
    sizes = _sizes(matrix.rows, matrix.columns)
    out = x.new_empty((len(x), matrix.rows))
    _run(x, matrix, None, sizes, out)
    if len(matrix.rawrow):
        weight = matrix.rawval.view(torch.bfloat16)
        own = _Sizes(len(weight), matrix.columns, sizes.split)
        found = _run(x, None, weight, own, x.new_empty((len(x), len(weight))))
        out[:, matrix.rawrow.long()] = found
    return out


def twin(x: Tensor, weight: Tensor) -> Tensor:
    """X W^T of a bf16 matrix [N, K], through the schedule of `linear`.

    Raises:
        ValueError: types or shapes do not fit.
    """
    _check(x, weight.shape[1])
    return _run(x, None, weight, _sizes(*weight.shape), x.new_empty((len(x), len(weight))))


def _check(x: Tensor, columns: int) -> None:
    if x.dtype != torch.bfloat16 or x.dim() != 2 or x.shape[1] != columns or x.stride(1) != 1:
        raise ValueError(f"x is {x.dtype} {list(x.shape)}, not bf16 [M, {columns}] with contiguous rows")


def _sizes(rows: int, columns: int) -> _Sizes:
    wanted = -(-PROGRAMS // triton.cdiv(rows, BLOCK_N))
    return _Sizes(rows, columns, max(1, min(wanted, MAX_SPLIT, groups(columns) // 4)))


def _run(x: Tensor, matrix: Planes | None, weight: Tensor | None, sizes: _Sizes, out: Tensor) -> Tensor:
    m, n = out.shape
    if not m or not n:
        return out
    found = torch.empty((m, n), dtype=torch.float32) if _interpreted() else out
    sums = found
    if sizes.split > 1:
        sums = torch.empty((sizes.split, m, n), dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(n, BLOCK_N), triton.cdiv(m, BLOCK_M), sizes.split)
    _product[grid](
        sums,
        x,
        None if weight is None else weight.view(torch.uint8),
        None if matrix is None else matrix.lo,
        None if matrix is None else matrix.code,
        None if matrix is None else matrix.pidx,
        None if matrix is None else matrix.ptab.view(torch.int32),
        m,
        n,
        sizes.columns,
        groups(sizes.columns),
        x.stride(0),
        packed=matrix is not None,
        whole=sizes.split == 1,
        as_float=_interpreted(),
        per_split=sizes.per_split,
        bm=BLOCK_M,
        bn=BLOCK_N,
        num_warps=4,
        num_stages=4,
    )
    if sizes.split > 1:
        _sum[(triton.cdiv(m * n, 1024),)](found, sums, m * n, split=sizes.split, block=1024)
    return out if found is out else out.copy_(found)


def _interpreted() -> bool:
    """The interpreter knows no bf16 products and rounds towards zero: it gets float32: exact."""
    return bool(triton.knobs.runtime.interpret)


@triton.jit
def _half(low, high, as_float: tl.constexpr):
    weight = (high << 8 | low.to(tl.int32)).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return weight.to(tl.float32) if as_float else weight


@triton.jit
def _product(
    sums,
    x,
    weight,
    lo,
    code,
    pidx,
    palettes,
    m,
    n,
    columns,
    q,
    x_stride,
    packed: tl.constexpr,
    whole: tl.constexpr,
    as_float: tl.constexpr,
    per_split: tl.constexpr,
    bm: tl.constexpr,
    bn: tl.constexpr,
):
    token = tl.program_id(1) * bm + tl.arange(0, bm)
    row = tl.program_id(0) * bn + tl.arange(0, bn)
    column = tl.arange(0, 32)
    has_token = (token < m)[:, None]
    has_row = row < n
    wide = row.to(tl.int64)
    acc = tl.zeros((bm, bn), dtype=tl.float32)
    for step in range(per_split):
        group = tl.program_id(2) * per_split + step
        live = has_row & (group < q)  # past the last group both operands are +0
        at = group * 64 + column
        x_at = x + token.to(tl.int64)[:, None] * x_stride + at[None, :]
        x_a = tl.load(x_at, mask=has_token & (at < columns)[None, :], other=0.0)
        x_b = tl.load(x_at + 32, mask=has_token & (at + 32 < columns)[None, :], other=0.0)
        if as_float:
            x_a = x_a.to(tl.float32)
            x_b = x_b.to(tl.float32)
        if not packed:  # byte by byte, as packed weights come: Triton orders a product by its loads
            w_at = weight + 2 * (wide[None, :] * columns + at[:, None])
            keep_a = has_row[None, :] & (at < columns)[:, None]
            keep_b = has_row[None, :] & (at + 32 < columns)[:, None]
            high_a = tl.load(w_at + 1, mask=keep_a, other=0).to(tl.int32)
            high_b = tl.load(w_at + 65, mask=keep_b, other=0).to(tl.int32)
            w_a = _half(tl.load(w_at, mask=keep_a, other=0), high_a, as_float)
            w_b = _half(tl.load(w_at + 64, mask=keep_b, other=0), high_b, as_float)
        else:
            base = wide * q + group
            number = tl.load(pidx + base, mask=live, other=0).to(tl.int32)
            number = tl.where(number == 255, 0, number)  # of a raw row, which is overwritten
            l0 = tl.load(palettes + 2 * number, mask=live, other=0)
            l1 = tl.load(palettes + 2 * number + 1, mask=live, other=0)
            lo_at = lo + base[None, :] * 64 + column[:, None]
            lo_a = tl.load(lo_at, mask=live[None, :], other=0)
            lo_b = tl.load(lo_at + 32, mask=live[None, :], other=0)
            pair = tl.load(code + base[None, :] * 32 + column[:, None], mask=live[None, :], other=0)
            both = pair.to(tl.int32)
            w_a = _half(lo_a, _high(both & 15, l0[None, :], l1[None, :]), as_float)
            w_b = _half(lo_b, _high(both >> 4, l0[None, :], l1[None, :]), as_float)
        acc = tl.dot(x_a, w_a, acc)
        acc = tl.dot(x_b, w_b, acc)
    each = has_token & has_row[None, :]
    at_out = token.to(tl.int64)[:, None] * n + row[None, :]
    if whole:
        tl.store(sums + at_out, acc.to(sums.dtype.element_ty), mask=each)
    else:
        tl.store(sums + tl.program_id(2).to(tl.int64) * m * n + at_out, acc, mask=each)


@triton.jit
def _high(nibble, l0, l1):
    """High byte of a weight: its class from the palette's two words, and its sign."""
    word = tl.where((nibble & 4) != 0, l1, l0)
    return (word >> ((nibble & 3) * 8)) & 0x7F | (nibble & 8) << 4


@triton.jit
def _sum(out, sums, count, split: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    total = tl.load(sums + at, mask=at < count, other=0.0)
    for part in tl.static_range(1, split):
        total += tl.load(sums + at + part * count, mask=at < count, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < count)
