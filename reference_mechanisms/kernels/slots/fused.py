"""The same in Triton, for a cache of many slots.

A program of the attention takes the rows of one seat that fill a tile of a matrix product together with the
query heads of a key head, so a seat's keys are read once for all its rows. The tile has one size whatever
the step's shape. Positions are cut into splits at fixed places, each a program that goes through its blocks
in order; another joins the splits in order. Within a tile no row notices another, and a block or split
that a row does not see leaves its sums as they were: so a row is bitwise the same alone and among others.
"""

# ruff: noqa: PLR0913, PLR0917, N803 - Triton's own language
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import itertools

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.slots.packing import SlotStand
from reference_mechanisms.kernels.step.following import follow_on, how, precede
from reference_mechanisms.kernels.step.fused import FusedOps, turned_head
from reference_mechanisms.kernels.step.twin import Stand

SPAN = 64  # positions of one block
SPLIT = 256  # positions of one program
CELLS = 64  # rows of a tile, query heads that share a key head among them


@triton.jit
def _place_rows(
    rows, row_stride, layer_heads, gains, table, slots, positions, cells, place, place_stride, capacity, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, NORMS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    row, head, layer = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2).to(tl.int64)
    low = tl.arange(0, HALF)
    high = low + HALF
    at = rows + row * row_stride + (layer * layer_heads + head) * 2 * HALF
    follow_on(PDL)
    first, second = tl.load(at + low), tl.load(at + high)
    position, slot = tl.load(positions + row), tl.load(slots + row)
    if head < HEADS + KV:
        first, second = turned_head(
            first, second, gains, layer * (HEADS + KV) + head, table, position, eps, HALF, NORMS
        )
    if head < HEADS:
        tl.store(at + low, first)
        tl.store(at + high, second)
    else:
        cell = (slot * 2 * KV + head - HEADS) * capacity + tl.load(cells + row)
        to = place + layer * place_stride + cell * 2 * HALF
        tl.store(to + low, first)
        tl.store(to + high, second)


@triton.jit
def over_blocks(
    query, base, behind, begin, end, least, last, low, high, fresh, ancestors, scale,
    LEVELS: tl.constexpr, CELLS: tl.constexpr, DIM: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Attention of a tile's rows over the positions of a split, block by block: best, total, found.

    With `LEVELS` the tile is of one row of a tree: from position `fresh` on its ancestors' cells are read.
    """
    dims = tl.arange(0, DIM)
    best = tl.full([CELLS], -1e30, tl.float32)
    total = tl.zeros([CELLS], tl.float32)
    found = tl.zeros([CELLS, DIM], tl.float32)
    for start in range(begin, end, SPAN):
        columns = start + tl.arange(0, SPAN)
        read = (columns >= least) & (columns < last)
        at = columns.to(tl.int64)
        if LEVELS > 0:
            new = read & (columns >= fresh)
            at = tl.where(new, fresh + tl.load(ancestors + columns - fresh, mask=new, other=0), at)
        cells = at[:, None] * DIM + dims[None]
        key = tl.load(base + cells, mask=read[:, None], other=0.0)
        value = tl.load(base + behind + cells, mask=read[:, None], other=0.0)
        inside = (columns[None] >= low[:, None]) & (columns[None] < high[:, None])
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(inside, scores, -1e30)
        higher = tl.maximum(best, tl.max(scores, 1))
        shares = tl.where(inside, tl.exp(scores - higher[:, None]), 0.0)
        shrink = tl.exp(best - higher)
        total = total * shrink + tl.sum(shares, 1)
        more = tl.dot(shares.to(value.dtype), value, input_precision="ieee")
        found = found * shrink[:, None] + more
        best = higher
    return best, total, found


@triton.jit
def _attend_slots(
    queries, row_stride, place, seat_slots, firsts, counts, seen_low, seen_high, parts, capacity, splits,
    scale,
    GROUPED: tl.constexpr, TOGETHER: tl.constexpr, TILES: tl.constexpr, DIM: tl.constexpr,
    CELLS: tl.constexpr, SPAN: tl.constexpr, SPLIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    seat, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    head, split = tl.program_id(1), tl.program_id(2)
    kv_heads = tl.num_programs(1)
    cell, dims = tl.arange(0, CELLS), tl.arange(0, DIM)
    follow_on(PDL)
    slot, first, count = tl.load(seat_slots + seat), tl.load(firsts + seat), tl.load(counts + seat)
    inside_seat = tile * TOGETHER + cell // GROUPED
    own = (cell < TOGETHER * GROUPED) & (inside_seat < count)
    row = first + inside_seat
    low = tl.load(seen_low + row, mask=own, other=1 << 30)
    high = tl.load(seen_high + row, mask=own, other=0)
    least, last = tl.min(low, 0).to(tl.int32), tl.max(high, 0).to(tl.int32)
    begin = split * SPLIT
    end = tl.minimum(begin + SPLIT, last)
    if (begin < end) & (begin + SPLIT > least):
        member = head * GROUPED + cell % GROUPED
        query = tl.load(
            queries + row[:, None] * row_stride + member[:, None] * DIM + dims[None],
            mask=own[:, None], other=0.0,
        )  # fmt: skip
        base = place + (slot * 2 * kv_heads + head) * capacity * DIM
        behind = kv_heads * capacity.to(tl.int64) * DIM
        best, total, found = over_blocks(
            query, base, behind, begin, end, least, last, low, high, 0, counts, scale, 0, CELLS, DIM, SPAN
        )
        at = ((row * kv_heads + head) * GROUPED + cell % GROUPED) * splits + split
        tl.store(parts + at[:, None] * (DIM + 2) + dims[None], found, mask=own[:, None])
        tl.store(parts + at * (DIM + 2) + DIM, best, mask=own)
        tl.store(parts + at * (DIM + 2) + DIM + 1, total, mask=own)


@triton.jit
def _join_splits(
    parts, row_seats, seen_low, seen_high, out, seats,
    SPLITS: tl.constexpr, DIM: tl.constexpr, SPLIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    row, head, heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    dims = tl.arange(0, DIM)
    base = parts + (row * heads + head) * SPLITS * (DIM + 2)
    best = tl.full([], -1e30, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    found = tl.zeros([DIM], tl.float32)
    follow_on(PDL)
    low, high = tl.load(seen_low + row), tl.load(seen_high + row)
    mine = tl.load(row_seats + row) < seats
    for split in range(SPLITS):
        real = mine & (split * SPLIT < high) & ((split + 1) * SPLIT > low)
        at = base + split * (DIM + 2)
        top = tl.load(at + DIM, mask=real, other=-1e30)
        share = tl.load(at + DIM + 1, mask=real, other=0.0)
        more = tl.load(at + dims, mask=real, other=0.0)
        higher = tl.maximum(best, top)
        weight = tl.where(real, tl.exp(top - higher), 0.0)
        shrink = tl.exp(best - higher)
        total = total * shrink + weight * share
        found = found * shrink + weight * more
        best = higher
    found = tl.where(mine, found / tl.where(mine, total, 1.0), 0.0)
    tl.store(out + (row * heads + head) * DIM + dims, found.to(out.dtype.element_ty))


class SlotOps(FusedOps):
    """`targets.layer_ops.LayerOps` of the rows of many requests."""

    def __init__(self, stand: SlotStand) -> None:
        """Of one forward."""
        super().__init__(Stand(stand.packed.positions, stand.seen, stand.rotations, stand.places, stand.eps))
        self._slots = stand

    def attend(self, layer: int, qkv: Tensor, qk_norm: Tensor | None) -> Tensor:
        """As in `LayerOps`."""
        stand = self._slots
        place = stand.places[layer]
        place_rows(qkv, qk_norm, stand, stand.packed.positions, place)
        return attend(qkv[:, : qkv.shape[1] - place.shape[1]], place, stand)


def place_rows(qkv: Tensor, qk_norm: Tensor | None, stand: SlotStand, cells: Tensor, place: Tensor) -> None:
    """Norm and rotate queries and keys, and put keys and values into a layer's cache.

    Args:
        qkv: [rows, heads + 2 x kv_heads, head_dim]; queries are overwritten.
        qk_norm: weights of the norm per head, if there is one.
        stand: of the rows.
        cells: where each lies in its slot, [rows].
        place: of the layer.
    """
    rows, all_heads, dim = qkv.shape
    kv_heads, packed = place.shape[1] // 2, stand.packed
    _place_rows[(rows, all_heads, 1)](
        qkv, qkv.stride(0), all_heads, qkv if qk_norm is None else qk_norm, stand.rotations,
        packed.row_slots, packed.positions, cells, place, 0, place.shape[2], stand.eps,
        HEADS=all_heads - 2 * kv_heads, KV=kv_heads, HALF=dim // 2, NORMS=qk_norm is not None, num_warps=1,
        **how(qkv.device),
    )  # fmt: skip


def attend(queries: Tensor, place: Tensor, stand: SlotStand) -> Tensor:
    """Attention of queries [rows, heads, head_dim] over a layer's cache, [rows, heads x head_dim].

    What no row of a tile sees is not read; padding gives zeros.
    """
    return join_splits(attend_splits(queries, place, stand), stand, queries)


def tile_of(grouped: int) -> int:
    """Rows of a tile, for so many query heads of a key head."""
    return max(CELLS, int(triton.next_power_of_2(grouped)))


def attend_splits(queries: Tensor, place: Tensor, stand: SlotStand) -> Tensor:
    """Attention over each split by itself, [rows, heads, splits, head_dim + 2]; arguments as of `attend`."""
    rows, heads, dim = queries.shape
    kv_heads, capacity = place.shape[1] // 2, place.shape[2]
    packed, seen, seats = stand.packed, stand.seen, len(stand.packed.slots)
    if queries.stride()[1:] != (dim, 1):
        queries = queries.contiguous()
    splits, grouped = -(-capacity // SPLIT), heads // kv_heads
    cells = tile_of(grouped)
    together = cells // grouped
    tiles = -(-stand.most // together)
    parts = torch.empty((rows, heads, splits, dim + 2), dtype=torch.float32, device=queries.device)
    _attend_slots[(seats * tiles, kv_heads, splits)](
        queries, queries.stride(0), place, packed.slots, packed.first, packed.counts, seen.low, seen.high,
        parts, capacity, splits, dim**-0.5,
        GROUPED=grouped, TOGETHER=together, TILES=tiles, DIM=dim, CELLS=cells, SPAN=SPAN, SPLIT=SPLIT,
        **how(queries.device),
    )  # fmt: skip
    return parts


def join_splits(parts: Tensor, stand: SlotStand, queries: Tensor) -> Tensor:
    """Splits of each row in order, [rows, heads x head_dim] in the type of the queries."""
    rows, heads, splits, wide = parts.shape
    dim, packed, seen = wide - 2, stand.packed, stand.seen
    out = torch.empty((rows, heads * dim), dtype=queries.dtype, device=queries.device)
    _join_splits[(rows, heads)](
        parts, packed.seats, seen.low, seen.high, out, len(packed.slots), SPLITS=splits, DIM=dim, SPLIT=SPLIT,
        num_warps=2, **how(queries.device),
    )  # fmt: skip
    return out


def keep(rows: Tensor, norms: Tensor | None, stand: SlotStand) -> None:
    """As `twin.keep`; the places of the layers lie at equal distances."""
    count, layers, heads, dim = rows.shape
    first = stand.places[0]
    steps = {two.storage_offset() - one.storage_offset() for one, two in itertools.pairwise(stand.places)}
    if len(steps) > 1:
        raise ValueError(f"places of layers lie {sorted(steps)} numbers apart; give those of one cache")
    packed = stand.packed
    _place_rows[(count, heads, layers)](
        rows, rows.stride(0), heads, rows if norms is None else norms, stand.rotations, packed.row_slots,
        packed.positions, packed.positions, first, max(steps, default=0), first.shape[2], stand.eps,
        HEADS=0, KV=heads // 2, HALF=dim // 2, NORMS=norms is not None, num_warps=1, **how(rows.device),
    )  # fmt: skip
