"""The same in Triton, each row a program of its own: what runs with it changes no bit of a row.

How far a row reads depends on what it sees alone. Its positions are cut into chunks at fixed places, a
program each; another one joins the chunks in order. Sums run in float32, and roundings are where the
torch code has them (`targets/layer_ops.py`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.step.twin import Seen, Stand

CHUNK = 64  # positions of one program
JOINED = 16  # chunks that are joined at a time
GROUP = 16  # least rows of a matrix product
GATED = 512  # columns of one program
TYPES = (torch.bfloat16, torch.float16, torch.float32)


def fits(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernels take this type and head size."""
    return dtype in TYPES and 16 <= head_dim <= 256 and head_dim & (head_dim - 1) == 0


@triton.jit
def _add_norm(
    hidden, delta, weight, summed, normed, size, eps, ADDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = columns < size
    at = row * size + columns
    x = tl.load(hidden + at, mask=inside, other=0.0)
    if ADDS:
        x = (x.to(tl.float32) + tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(summed + at, x, mask=inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    rounded = (wide * scale).to(x.dtype).to(tl.float32)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, (rounded * gain).to(x.dtype), mask=inside)


@triton.jit
def _rotate_write(
    qkv, gains, table, positions, place, capacity, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, NORMS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    low = tl.arange(0, HALF)
    high = low + HALF
    at = qkv + (row * tl.num_programs(1) + head) * 2 * HALF
    first, second = tl.load(at + low), tl.load(at + high)
    position = tl.load(positions + row)
    if head < HEADS + KV:
        kind = first.dtype
        if NORMS:
            one, two = first.to(tl.float32), second.to(tl.float32)
            mean = (tl.sum(one * one, 0) + tl.sum(two * two, 0)) / (2 * HALF)
            scale = tl.rsqrt(mean + eps)
            gain = gains + head * 2 * HALF
            one, two = (one * scale).to(kind).to(tl.float32), (two * scale).to(kind).to(tl.float32)
            first = (one * tl.load(gain + low).to(tl.float32)).to(kind)
            second = (two * tl.load(gain + high).to(tl.float32)).to(kind)
        cosines = table + position * 4 * HALF
        sines = cosines + 2 * HALF
        one, two = first.to(tl.float32), second.to(tl.float32)
        straight = (one * tl.load(cosines + low).to(tl.float32)).to(kind).to(tl.float32)
        across = (two * tl.load(sines + low).to(tl.float32)).to(kind).to(tl.float32)
        first = (straight + across).to(kind)
        straight = (two * tl.load(cosines + high).to(tl.float32)).to(kind).to(tl.float32)
        across = (one * tl.load(sines + high).to(tl.float32)).to(kind).to(tl.float32)
        second = (straight + across).to(kind)
    if head < HEADS:
        tl.store(at + low, first)
        tl.store(at + high, second)
    else:
        to = place + ((head - HEADS).to(tl.int64) * capacity + position) * 2 * HALF
        tl.store(to + low, first)
        tl.store(to + high, second)


@triton.jit
def _attend_chunk(
    queries, row_stride, place, seen_low, seen_high, parts, capacity, chunks, scale,
    GROUPED: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    row, head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    kv_heads = tl.num_programs(1)
    low, high = tl.load(seen_low + row), tl.load(seen_high + row)
    start = chunk * SPAN
    if (start < high) & (start + SPAN > low):
        members, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
        mine = members[:, None] < GROUPED
        query = tl.load(
            queries + row * row_stride + (head * GROUPED + members[:, None]) * DIM + dims[None],
            mask=mine, other=0.0,
        )  # fmt: skip
        columns = start + tl.arange(0, SPAN)
        inside = (columns >= low) & (columns < high)
        cells = (head.to(tl.int64) * capacity + columns[:, None]) * DIM + dims[None]
        key = tl.load(place + cells, mask=inside[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(inside[None], scores, -1e30)
        best = tl.max(scores, 1)
        shares = tl.where(inside[None], tl.exp(scores - best[:, None]), 0.0)
        total = tl.sum(shares, 1)
        behind = kv_heads.to(tl.int64) * capacity * DIM
        value = tl.load(place + behind + cells, mask=inside[:, None], other=0.0)
        found = tl.dot(shares.to(value.dtype), value, input_precision="ieee")
        slot = ((row * kv_heads + head) * GROUPED + members) * chunks + chunk
        own = members < GROUPED
        tl.store(parts + slot[:, None] * (DIM + 2) + dims[None], found, mask=mine)
        tl.store(parts + slot * (DIM + 2) + DIM, best, mask=own)
        tl.store(parts + slot * (DIM + 2) + DIM + 1, total, mask=own)


@triton.jit
def _join_chunks(
    parts, seen_low, seen_high, out,
    CHUNKS: tl.constexpr, DIM: tl.constexpr, SPAN: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    row, head, heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    low, high = tl.load(seen_low + row), tl.load(seen_high + row)
    dims = tl.arange(0, DIM)
    base = parts + (row * heads + head) * CHUNKS * (DIM + 2)
    best = tl.full([], -1e30, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    found = tl.zeros([DIM], tl.float32)
    for first in range(0, CHUNKS, BATCH):
        chunk = first + tl.arange(0, BATCH)
        real = (chunk * SPAN < high) & ((chunk + 1) * SPAN > low)
        tops = tl.load(base + chunk * (DIM + 2) + DIM, mask=real, other=-1e30)
        sums = tl.load(base + chunk * (DIM + 2) + DIM + 1, mask=real, other=0.0)
        cells = base + chunk[:, None] * (DIM + 2) + dims[None]
        rows = tl.load(cells, mask=real[:, None], other=0.0)
        higher = tl.maximum(best, tl.max(tops, 0))
        weights = tl.where(real, tl.exp(tops - higher), 0.0)
        shrink = tl.exp(best - higher)
        total = total * shrink + tl.sum(weights * sums, 0)
        found = found * shrink + tl.sum(weights[:, None] * rows, 0)
        best = higher
    tl.store(out + (row * heads + head) * DIM + dims, (found / total).to(out.dtype.element_ty))


@triton.jit
def _gate(gate_up, out, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    gate = tl.load(gate_up + row * 2 * size + columns, mask=inside, other=0.0)
    up = tl.load(gate_up + (row * 2 + 1) * size + columns, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    opened = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out + row * size + columns, (opened * up.to(tl.float32)).to(gate.dtype), mask=inside)


def attend(queries: Tensor, place: Tensor, seen: Seen) -> Tensor:
    """As `twin.attend`; heads and head_dim of the queries lie together, whatever is not seen is not read."""
    rows, heads, dim = queries.shape
    kv_heads, capacity = place.shape[0] // 2, place.shape[1]
    if queries.stride()[1:] != (dim, 1):
        queries = queries.contiguous()
    chunks = -(-capacity // CHUNK)
    parts = torch.empty((rows, heads, chunks, dim + 2), dtype=torch.float32, device=queries.device)
    out = torch.empty((rows, heads * dim), dtype=queries.dtype, device=queries.device)
    _attend_chunk[(rows, kv_heads, chunks)](
        queries, queries.stride(0), place, seen.low, seen.high, parts, capacity, chunks, dim**-0.5,
        GROUPED=heads // kv_heads, DIM=dim, ROWS=max(GROUP, triton.next_power_of_2(heads // kv_heads)),
        SPAN=CHUNK,
    )  # fmt: skip
    _join_chunks[(rows, heads)](
        parts, seen.low, seen.high, out, CHUNKS=chunks, DIM=dim, SPAN=CHUNK, BATCH=JOINED
    )
    return out


class FusedOps:
    """`targets.layer_ops.LayerOps` of rows at positions that only the device knows."""

    def __init__(self, stand: Stand) -> None:
        """Of one forward."""
        self._stand = stand
        self._kv_heads = len(stand.places[0]) // 2

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """As in `LayerOps`."""
        normed = torch.empty_like(hidden)
        self._norm(hidden, hidden, weight, hidden, normed, adds=False)
        return normed

    def add_norm(self, hidden: Tensor, delta: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """As in `LayerOps`."""
        summed, normed = torch.empty_like(hidden), torch.empty_like(hidden)
        self._norm(hidden, delta, weight, summed, normed, adds=True)
        return summed, normed

    def attend(self, layer: int, qkv: Tensor, qk_norm: Tensor | None) -> Tensor:
        """As in `LayerOps`."""
        rows, all_heads, dim = qkv.shape
        stand = self._stand
        heads, place = all_heads - 2 * self._kv_heads, stand.places[layer]
        _rotate_write[(rows, all_heads)](
            qkv, qkv if qk_norm is None else qk_norm, stand.rotations, stand.positions, place,
            place.shape[1], stand.eps,
            HEADS=heads, KV=self._kv_heads, HALF=dim // 2, NORMS=qk_norm is not None,
        )  # fmt: skip
        return attend(qkv[:, :heads], place, stand.seen)

    def gate(self, gate_up: Tensor) -> Tensor:
        """As in `LayerOps`."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty((rows, size))
        _gate[(rows, triton.cdiv(size, GATED))](gate_up, out, size, BLOCK=GATED)
        return out

    def _norm(
        self, hidden: Tensor, delta: Tensor, weight: Tensor, summed: Tensor, normed: Tensor, *, adds: bool
    ) -> None:
        rows, size = hidden.shape
        _add_norm[(rows,)](
            hidden, delta, weight, summed, normed, size, self._stand.eps,
            ADDS=adds, BLOCK=triton.next_power_of_2(size),
        )  # fmt: skip
