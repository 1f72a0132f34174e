"""Attention of a few rows over a cache, in Triton.

Positions are cut into chunks at fixed places, a program each; another one joins the chunks in order. A
program takes as many rows as fill one tile of a matrix product together with the query heads that share a
key head. What a row sees alone decides which chunks count for it, and within a tile no row notices
another: so a row is bitwise the same alone and among others.
"""

# ruff: noqa: PLR0913, PLR0917, N803, RUF005 - Triton's own language
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.step.following import follow_on, how, precede
from reference_mechanisms.kernels.step.twin import Seen

CHUNK = 64  # positions of one program
JOINED = 8  # chunks whose parts are under way at once
WHOLE = 16  # chunks up to which the parts of a row are all under way at once
GROUP = 16  # rows of a matrix product, at least


@triton.jit
def _attend_chunk(
    queries, row_stride, place, seen_low, seen_high, parts, capacity, chunks, rows, scale,
    GROUPED: tl.constexpr, TOGETHER: tl.constexpr, DIM: tl.constexpr, CELLS: tl.constexpr,
    SPAN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    head, chunk = tl.program_id(1), tl.program_id(2)
    kv_heads = tl.num_programs(1)
    cell, dims = tl.arange(0, CELLS), tl.arange(0, DIM)
    row = (tl.program_id(0) * TOGETHER + cell // GROUPED).to(tl.int64)
    own = (cell < TOGETHER * GROUPED) & (row < rows)
    start = chunk * SPAN
    columns = start + tl.arange(0, SPAN)
    follow_on(PDL)
    low = tl.load(seen_low + row, mask=own, other=1 << 40)
    high = tl.load(seen_high + row, mask=own, other=0)
    first, last = tl.min(low, 0), tl.max(high, 0)
    if (start < last) & (start + SPAN > first):
        member = head * GROUPED + cell % GROUPED
        query = tl.load(
            queries + row[:, None] * row_stride + member[:, None] * DIM + dims[None],
            mask=own[:, None], other=0.0,
        )  # fmt: skip
        read = (columns >= first) & (columns < last)
        cells = (head.to(tl.int64) * capacity + columns[:, None]) * DIM + dims[None]
        key = tl.load(place + cells, mask=read[:, None], other=0.0)
        behind = kv_heads.to(tl.int64) * capacity * DIM
        value = tl.load(place + behind + cells, mask=read[:, None], other=0.0)
        inside = (columns[None] >= low[:, None]) & (columns[None] < high[:, None])
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(inside, scores, -1e30)
        best = tl.max(scores, 1)
        shares = tl.where(inside, tl.exp(scores - best[:, None]), 0.0)
        total = tl.sum(shares, 1)
        found = tl.dot(shares.to(value.dtype), value, input_precision="ieee")
        slot = ((row * kv_heads + head) * GROUPED + cell % GROUPED) * chunks + chunk
        tl.store(parts + slot[:, None] * (DIM + 2) + dims[None], found, mask=own[:, None])
        tl.store(parts + slot * (DIM + 2) + DIM, best, mask=own)
        tl.store(parts + slot * (DIM + 2) + DIM + 1, total, mask=own)


@triton.jit
def joined(base, low, high, DIM: tl.constexpr, SPAN: tl.constexpr, BATCH: tl.constexpr):
    """Attention [rows, DIM] from its chunks, added in order; what a row does not see has no part in it.

    Args:
        base: first part of each row; those of the next chunks follow it.
        low: first position that each row sees.
        high: one behind its last; 0 for a row that is not wanted.
        DIM: of a head.
        SPAN: positions of a chunk.
        BATCH: chunks whose parts are under way at once.
    """
    dims = tl.arange(0, DIM)
    first, last = tl.min(low, 0) // SPAN, tl.cdiv(tl.max(high, 0), SPAN)
    best = tl.full([base.shape[0]], -1e30, tl.float32)
    start = first
    while start < last:
        for inner in tl.static_range(BATCH):
            chunk = start + inner
            real = (chunk * SPAN < high) & ((chunk + 1) * SPAN > low)
            at = base + chunk * (DIM + 2)
            best = tl.maximum(best, tl.load(at + DIM, mask=real, other=-1e30, cache_modifier=".cg"))
        start += BATCH
    total = tl.zeros([base.shape[0]], tl.float32)
    found = tl.zeros([base.shape[0], DIM], tl.float32)
    start = first
    while start < last:
        for inner in tl.static_range(BATCH):
            chunk = start + inner
            real = (chunk * SPAN < high) & ((chunk + 1) * SPAN > low)
            at = base + chunk * (DIM + 2)
            top = tl.load(at + DIM, mask=real, other=-1e30, cache_modifier=".cg")
            share = tl.load(at + DIM + 1, mask=real, other=0.0, cache_modifier=".cg")
            values = tl.load(at[:, None] + dims[None], mask=real[:, None], other=0.0, cache_modifier=".cg")
            weight = tl.exp(top - best)
            total = tl.where(real, tl.fma(weight, share, total), total)
            wide = tl.broadcast_to(weight[:, None], found.shape)
            found = tl.where(real[:, None], tl.fma(wide, values, found), found)
        start += BATCH
    return found / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit
def _joined_whole(base, low, high, DIM: tl.constexpr, SPAN: tl.constexpr, CHUNKS: tl.constexpr):
    """The same bits of few rows whose parts stay in registers: nothing is read twice, or after another."""
    dims = tl.arange(0, DIM)
    best = tl.full([base.shape[0]], -1e30, tl.float32)
    tops, shares, values = (), (), ()
    for chunk in tl.static_range(CHUNKS):
        real = (chunk * SPAN < high) & ((chunk + 1) * SPAN > low)
        at = base + chunk * (DIM + 2)
        top = tl.load(at + DIM, mask=real, other=-1e30)
        tops = tops + (top,)
        shares = shares + (tl.load(at + DIM + 1, mask=real, other=0.0),)
        values = values + (tl.load(at[:, None] + dims[None], mask=real[:, None], other=0.0),)
        best = tl.maximum(best, top)
    total = tl.zeros([base.shape[0]], tl.float32)
    found = tl.zeros([base.shape[0], DIM], tl.float32)
    for chunk in tl.static_range(CHUNKS):
        real = (chunk * SPAN < high) & ((chunk + 1) * SPAN > low)
        weight = tl.exp(tops[chunk] - best)
        total = tl.where(real, tl.fma(weight, shares[chunk], total), total)
        wide = tl.broadcast_to(weight[:, None], found.shape)
        found = tl.where(real[:, None], tl.fma(wide, values[chunk], found), found)
    return found / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit
def _join_chunks(
    parts, seen_low, seen_high, out, chunks,
    DIM: tl.constexpr, SPAN: tl.constexpr, BATCH: tl.constexpr, CHUNKS: tl.constexpr,
    EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    row, head, heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    dims, one = tl.arange(0, DIM), tl.arange(0, 1)
    if not EARLY:
        follow_on(PDL)
    low, high = tl.load(seen_low + row + one), tl.load(seen_high + row + one)
    if EARLY:
        follow_on(PDL)
    base = parts + ((row * heads + head) * chunks + one) * (DIM + 2)
    if CHUNKS:
        found = _joined_whole(base, low, high, DIM, SPAN, CHUNKS)
    else:
        found = joined(base, low, high, DIM, SPAN, BATCH)
    to = out + (row * heads + head) * DIM + dims
    tl.store(to[None], found.to(out.dtype.element_ty))


def attend(queries: Tensor, place: Tensor, seen: Seen) -> Tensor:
    """As `twin.attend`; heads and head_dim of the queries lie together.

    Positions that no row of a tile sees are not read; what a row does not see must be finite where
    another row of its tile sees it.
    """
    rows, heads, dim = queries.shape
    kv_heads, capacity = place.shape[0] // 2, place.shape[1]
    if queries.stride()[1:] != (dim, 1):
        queries = queries.contiguous()
    chunks, grouped = -(-capacity // CHUNK), heads // kv_heads
    together = max(1, GROUP // grouped)
    parts = torch.empty((rows, heads, chunks, dim + 2), dtype=torch.float32, device=queries.device)
    _attend_chunk[(triton.cdiv(rows, together), kv_heads, chunks)](
        queries, queries.stride(0), place, seen.low, seen.high, parts, capacity, chunks, rows, dim**-0.5,
        GROUPED=grouped, TOGETHER=together, DIM=dim,
        CELLS=max(GROUP, triton.next_power_of_2(grouped)), SPAN=CHUNK, **how(queries.device),
    )  # fmt: skip
    out = torch.empty((rows, heads * dim), dtype=queries.dtype, device=queries.device)
    return join_chunks(parts, seen, out)


def join_chunks(parts: Tensor, seen: Seen, out: Tensor, *, early: bool = False) -> Tensor:
    """Attention of rows from its chunks.

    Args:
        parts: [rows, heads, chunks, head_dim + 2], of each chunk the values, the largest score and the sum
            of shares; whatever a row does not see is not read.
        seen: by each row.
        out: [rows, heads x head_dim], written and returned.
        early: as of `twin.Ways`.
    """
    rows, heads, chunks, size = parts.shape
    _join_chunks[(rows, heads)](
        parts, seen.low, seen.high, out, chunks,
        DIM=size - 2, SPAN=CHUNK, BATCH=JOINED, CHUNKS=chunks if chunks <= WHOLE else 0,
        EARLY=early, **how(parts.device),
    )  # fmt: skip
    return out
