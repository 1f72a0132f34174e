"""A layer's attention: norm, rotation, cache write and chunks; then the join, in one launch or two.

The rows of a step stand at consecutive positions. Keys and values in front of them are read from the cache;
their own are made from the products by every program that needs them, and written to the cache by one. A
position lies at the same place of the same chunk whatever step writes or reads it, so its key has the same
bits made anew and read back. The chunks are joined as in `fused_attention.py`: by a launch of its own, or
by whichever program of a tile and key head ends last (`Ways.joins`), which a ticket tells.
"""

# ruff: noqa: PLR0913, PLR0915, PLR0917, N803, N806 - Triton's own language
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.step.fetching import fetch, fetched
from reference_mechanisms.kernels.step.following import follow_on, how, precede
from reference_mechanisms.kernels.step.fused_attention import CHUNK, GROUP, JOINED, join_chunks, joined
from reference_mechanisms.kernels.step.twin import WAYS, Stand, Ways


@triton.jit
def _turned(one, two, gain_one, gain_two, cosine, sine, across_cosine, across_sine, eps, NORMS: tl.constexpr):
    """Both halves of heads [rows, half], normed with gains [half or rows, half] and rotated."""
    kind = one.dtype
    if NORMS:
        wide, other = one.to(tl.float32), two.to(tl.float32)
        mean = (tl.sum(wide * wide, 1) + tl.sum(other * other, 1)) / (2 * one.shape[1])
        scale = tl.rsqrt(mean + eps)[:, None]
        one = ((wide * scale).to(kind).to(tl.float32) * gain_one.to(tl.float32)).to(kind)
        two = ((other * scale).to(kind).to(tl.float32) * gain_two.to(tl.float32)).to(kind)
    first, second = one.to(tl.float32), two.to(tl.float32)
    straight = (first * cosine.to(tl.float32)).to(kind).to(tl.float32)
    across = (second * sine.to(tl.float32)).to(kind).to(tl.float32)
    low = (straight + across).to(kind)
    straight = (second * across_cosine.to(tl.float32)).to(kind).to(tl.float32)
    across = (first * across_sine.to(tl.float32)).to(kind).to(tl.float32)
    return low, (straight + across).to(kind)


@triton.jit
def _cached(place, cells, behind, old, HALF: tl.constexpr):
    """Keys in halves, and values, of cells that earlier forwards wrote."""
    half, dims, old = tl.arange(0, HALF), tl.arange(0, 2 * HALF), old[:, None]
    low = tl.load(place + cells[:, None] + half[None], mask=old, other=0.0)
    high = tl.load(place + cells[:, None] + HALF + half[None], mask=old, other=0.0)
    return low, high, tl.load(place + behind + cells[:, None] + dims[None], mask=old, other=0.0)


@triton.jit
def _attend_layer(
    qkv, gains, table, positions, place, seen_low, seen_high, parts, out, tickets, ahead,
    capacity, chunks, rows, scale, eps, ahead_bytes,
    GROUPED: tl.constexpr, TOGETHER: tl.constexpr, HALF: tl.constexpr, CELLS: tl.constexpr,
    SPAN: tl.constexpr, KV: tl.constexpr, NORMS: tl.constexpr, JOINS: tl.constexpr, BATCH: tl.constexpr,
    EARLY: tl.constexpr, FETCHES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    tile, head, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    DIM: tl.constexpr = 2 * HALF
    HEADS: tl.constexpr = KV * GROUPED
    STRIDE: tl.constexpr = (HEADS + 2 * KV) * DIM
    cell, half, dims = tl.arange(0, CELLS), tl.arange(0, HALF), tl.arange(0, DIM)
    row = tile * TOGETHER + cell // GROUPED
    own = (cell < TOGETHER * GROUPED) & (row < rows)
    member = head * GROUPED + cell % GROUPED
    start = chunk * SPAN
    columns = start + tl.arange(0, SPAN)
    if not EARLY:
        fetch(ahead, ahead_bytes, FETCHES)
        follow_on(PDL)
    fresh = tl.load(positions)
    low = tl.load(seen_low + row, mask=own, other=1 << 40)
    high = tl.load(seen_high + row, mask=own, other=0)
    first, last = tl.min(low, 0), tl.max(high, 0)
    made = (columns >= fresh) & (columns < fresh + rows)
    writes = (tile == 0) & (start < fresh + rows) & (start + SPAN > fresh)
    reads = (start < last) & (start + SPAN > first)
    cells = (head.to(tl.int64) * capacity + columns) * DIM
    behind = KV * capacity.to(tl.int64) * DIM
    old = (columns >= first) & (columns < last) & (columns < fresh)
    if EARLY:
        key_low, key_high, value = _cached(place, cells, behind, old & (reads | writes), HALF)
        fetch(ahead, ahead_bytes, FETCHES)
        follow_on(PDL)
    if reads | writes:
        if not EARLY:
            key_low, key_high, value = _cached(place, cells, behind, old, HALF)
        mine = own[:, None]
        at = row * STRIDE + member * DIM
        query_low = tl.load(qkv + at[:, None] + half[None], mask=mine, other=0.0)
        query_high = tl.load(qkv + at[:, None] + HALF + half[None], mask=mine, other=0.0)
        if (start < fresh + rows) & (start + SPAN > fresh):
            source = (columns - fresh) * STRIDE + (HEADS + head) * DIM
            lies = made[:, None]
            one = tl.load(qkv + source[:, None] + half[None], mask=lies, other=0.0)
            two = tl.load(qkv + source[:, None] + HALF + half[None], mask=lies, other=0.0)
            gain = gains + (HEADS + head) * DIM
            cosines = table + columns[:, None] * 2 * DIM + half[None]
            one, two = _turned(
                one, two, tl.load(gain + half)[None], tl.load(gain + HALF + half)[None],
                tl.load(cosines, mask=lies, other=0.0), tl.load(cosines + DIM, mask=lies, other=0.0),
                tl.load(cosines + HALF, mask=lies, other=0.0),
                tl.load(cosines + DIM + HALF, mask=lies, other=0.0), eps, NORMS,
            )  # fmt: skip
            new = tl.load(qkv + source[:, None] + KV * DIM + dims[None], mask=lies, other=0.0)
            if writes:
                tl.store(place + cells[:, None] + half[None], one, mask=lies)
                tl.store(place + cells[:, None] + HALF + half[None], two, mask=lies)
                tl.store(place + behind + cells[:, None] + dims[None], new, mask=lies)
            key_low, key_high = tl.where(lies, one, key_low), tl.where(lies, two, key_high)
            value = tl.where(lies, new, value)
        if reads:
            position = fresh + row
            cosines = table + position[:, None] * 2 * DIM + half[None]
            gain = gains + member[:, None] * DIM + half[None]
            query_low, query_high = _turned(
                query_low, query_high,
                tl.load(gain, mask=mine, other=0.0), tl.load(gain + HALF, mask=mine, other=0.0),
                tl.load(cosines, mask=mine, other=0.0), tl.load(cosines + DIM, mask=mine, other=0.0),
                tl.load(cosines + HALF, mask=mine, other=0.0),
                tl.load(cosines + DIM + HALF, mask=mine, other=0.0), eps, NORMS,
            )  # fmt: skip
            scores = tl.dot(query_low, tl.trans(key_low), input_precision="ieee")
            scores = tl.dot(query_high, tl.trans(key_high), scores, input_precision="ieee") * scale
            inside = (columns[None] >= low[:, None]) & (columns[None] < high[:, None])
            scores = tl.where(inside, scores, -1e30)
            best = tl.max(scores, 1)
            shares = tl.where(inside, tl.exp(scores - best[:, None]), 0.0)
            total = tl.sum(shares, 1)
            found = tl.dot(shares.to(value.dtype), value, input_precision="ieee")
            base = parts + (row * HEADS + member).to(tl.int64) * chunks * (DIM + 2)
            slot = base + chunk * (DIM + 2)
            tl.store(slot[:, None] + dims[None], found, mask=mine)
            tl.store(slot + DIM, best, mask=own)
            tl.store(slot + DIM + 1, total, mask=own)
            if JOINS:
                # Who comes last is chance; what it adds, and in which order, is not.
                tl.debug_barrier()  # every thread has stored its share of the part
                ticket = tickets + tile * KV + head
                others = tl.cdiv(last, SPAN) - first // SPAN - 1
                if tl.atomic_add(ticket, 1, sem="acq_rel", scope="gpu") == others:
                    tl.store(ticket, 0)  # for the next launch
                    tl.debug_barrier()
                    whole = joined(base, low, high, DIM, SPAN, BATCH)
                    to = out + (row * HEADS + member).to(tl.int64) * DIM
                    tl.store(to[:, None] + dims[None], whole.to(out.dtype.element_ty), mask=mine)


def attend_layer(
    qkv: Tensor,
    qk_norm: Tensor | None,
    stand: Stand,
    place: Tensor,
    ways: Ways = WAYS,
    ahead: Tensor | None = None,
) -> Tensor:
    """Norm and rotate queries and keys, write keys and values, attend; as `LayerOps.attend`.

    Args:
        qkv: [rows, heads + 2 x kv_heads, head_dim], contiguous; left as it is.
        qk_norm: weights of the norm per head, if there is one.
        stand: of the rows, at consecutive positions.
        place: cache of the layer; what no row sees is not read, but for the rows of a tile of another.
        ways: of which `joins` needs the stand's tickets.
        ahead: weights of the next product, of which `Ways.fetch` MiB are fetched meanwhile.
    """
    rows, all_heads, dim = qkv.shape
    kv_heads, capacity = place.shape[0] // 2, place.shape[1]
    heads = all_heads - 2 * kv_heads
    chunks, grouped = -(-capacity // CHUNK), heads // kv_heads
    together = max(1, GROUP // grouped)
    tiles, tickets = triton.cdiv(rows, together), stand.tickets if ways.joins else None
    if tickets is not None and tiles * kv_heads > len(tickets):
        raise ValueError(
            f"{rows} rows of {kv_heads} key heads need {tiles * kv_heads} tickets, not {len(tickets)}"
        )
    parts = torch.empty((rows, heads, chunks, dim + 2), dtype=torch.float32, device=qkv.device)
    out = torch.empty((rows, heads * dim), dtype=qkv.dtype, device=qkv.device)
    seen, options = stand.seen, how(qkv.device)
    weights, count = fetched(ahead, ways.fetch if options["PDL"] else 0)
    _attend_layer[(tiles, kv_heads, chunks)](
        qkv, qkv if qk_norm is None else qk_norm, stand.rotations, stand.positions, place, seen.low,
        seen.high, parts, out, parts if tickets is None else tickets, qkv if weights is None else weights,
        capacity, chunks, rows, dim**-0.5, stand.eps, count,
        GROUPED=grouped, TOGETHER=together, HALF=dim // 2, CELLS=max(GROUP, triton.next_power_of_2(grouped)),
        SPAN=CHUNK, KV=kv_heads, NORMS=qk_norm is not None, JOINS=tickets is not None, BATCH=JOINED,
        EARLY=ways.early, FETCHES=weights is not None, **options,
    )  # fmt: skip
    return join_chunks(parts, seen, out, early=ways.early) if tickets is None else out
