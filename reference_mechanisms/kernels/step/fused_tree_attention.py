"""A layer's attention over a draft tree: norm, rotation, cache write and chunks in one launch, then the join.

Chunks that end in front of the anchor hold what is committed: rows share them, as in
`fused_layer_attention.py`. The one or two chunks of the tree itself are computed for each row alone, with
the key of its own ancestor at every position, made anew from the products. So each chunk of a row holds what
the chunk of its chain holds, place by place, and is summed by the same products.
"""

# ruff: noqa: PLR0913, PLR0915, PLR0917, N803, N806 - Triton's own language
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.step.following import follow_on, how, precede
from reference_mechanisms.kernels.step.fused_attention import CHUNK, GROUP, join_chunks
from reference_mechanisms.kernels.step.fused_layer_attention import _turned
from reference_mechanisms.kernels.step.trees import TreeStand
from reference_mechanisms.kernels.step.twin import Seen

ENDS = 2  # chunks that a path of up to `CHUNK` rows can lie in


@triton.jit
def _attend_tree(
    qkv, gains, table, start_at, depths, paths, place, parts, capacity, chunks, tiles, rows, scale, eps,
    GROUPED: tl.constexpr, TOGETHER: tl.constexpr, HALF: tl.constexpr, CELLS: tl.constexpr,
    SPAN: tl.constexpr, LEVELS: tl.constexpr, KV: tl.constexpr, NORMS: tl.constexpr, ENDS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    unit, head = tl.program_id(0), tl.program_id(1)
    DIM: tl.constexpr = 2 * HALF
    HEADS: tl.constexpr = KV * GROUPED
    STRIDE: tl.constexpr = (HEADS + 2 * KV) * DIM
    cell, half, dims = tl.arange(0, CELLS), tl.arange(0, HALF), tl.arange(0, DIM)
    shared = unit < tiles * chunks
    alone = unit - tiles * chunks
    single = tl.where(shared, 0, alone // ENDS)
    row = tl.where(shared, (unit // chunks) * TOGETHER + cell // GROUPED, single + 0 * cell)
    own = tl.where(shared, (cell < TOGETHER * GROUPED) & (row < rows), cell < GROUPED)
    member = head * GROUPED + cell % GROUPED
    follow_on(PDL)
    fresh = tl.load(start_at)
    depth = tl.load(depths + row, mask=own, other=0)
    end = fresh + tl.max(depth, 0) + 1
    chunk = tl.where(shared, unit % chunks, fresh // SPAN + alone % ENDS)
    start = chunk * SPAN
    if tl.where(shared, start + SPAN <= fresh, start < end):
        columns = start + tl.arange(0, SPAN)
        cells = (head.to(tl.int64) * capacity + columns) * DIM
        behind = KV * capacity.to(tl.int64) * DIM
        old = (columns < fresh)[:, None]
        key_low = tl.load(place + cells[:, None] + half[None], mask=old, other=0.0)
        key_high = tl.load(place + cells[:, None] + HALF + half[None], mask=old, other=0.0)
        value = tl.load(place + behind + cells[:, None] + dims[None], mask=old, other=0.0)
        mine = own[:, None]
        at = row * STRIDE + member * DIM
        query_low = tl.load(qkv + at[:, None] + half[None], mask=mine, other=0.0)
        query_high = tl.load(qkv + at[:, None] + HALF + half[None], mask=mine, other=0.0)
        if start + SPAN > fresh:
            made = (columns >= fresh) & (columns < end)
            ancestor = tl.load(paths + single * LEVELS + columns - fresh, mask=made, other=0)
            source = ancestor * STRIDE + (HEADS + head) * DIM
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
            # The row's own key and value go to the cache in the order of rows, where a path is found.
            last = (columns == end - 1)[:, None]
            slot = (head.to(tl.int64) * capacity + fresh + single + 0 * columns) * DIM
            tl.store(place + slot[:, None] + half[None], one, mask=last)
            tl.store(place + slot[:, None] + HALF + half[None], two, mask=last)
            tl.store(place + behind + slot[:, None] + dims[None], new, mask=last)
            key_low, key_high = tl.where(lies, one, key_low), tl.where(lies, two, key_high)
            value = tl.where(lies, new, value)
        position = fresh + depth
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
        inside = own[:, None] & (columns[None] <= position[:, None])
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


def attend_tree(qkv: Tensor, qk_norm: Tensor | None, stand: TreeStand, seen: Seen, place: Tensor) -> Tensor:
    """Norm and rotate queries and keys, write keys and values, attend; as `LayerOps.attend`.

    Args:
        qkv: [rows, heads + 2 x kv_heads, head_dim], contiguous; left as it is.
        qk_norm: weights of the norm per head, if there is one.
        stand: of the tree's rows; paths of at most `CHUNK` rows.
        seen: everything up to each row's own position.
        place: cache of the layer; what lies behind the anchor is not read.
    """
    rows, all_heads, dim = qkv.shape
    kv_heads, capacity = place.shape[0] // 2, place.shape[1]
    heads, levels = all_heads - 2 * kv_heads, stand.paths.shape[1]
    if levels > CHUNK:
        raise ValueError(f"paths of {levels} rows; the kernel takes {CHUNK} at most")
    chunks, grouped = -(-capacity // CHUNK), heads // kv_heads
    together = max(1, GROUP // grouped)
    tiles = triton.cdiv(rows, together)
    parts = torch.empty((rows, heads, chunks, dim + 2), dtype=torch.float32, device=qkv.device)
    out = torch.empty((rows, heads * dim), dtype=qkv.dtype, device=qkv.device)
    _attend_tree[(tiles * chunks + rows * ENDS, kv_heads)](
        qkv, qkv if qk_norm is None else qk_norm, stand.rotations, stand.start, stand.depths, stand.paths,
        place, parts, capacity, chunks, tiles, rows, dim**-0.5, stand.eps,
        GROUPED=grouped, TOGETHER=together, HALF=dim // 2, CELLS=max(GROUP, triton.next_power_of_2(grouped)),
        SPAN=CHUNK, LEVELS=levels, KV=kv_heads, NORMS=qk_norm is not None, ENDS=ENDS, **how(qkv.device),
    )  # fmt: skip
    return join_chunks(parts, seen, out)
