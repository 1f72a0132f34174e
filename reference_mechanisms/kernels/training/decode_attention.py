"""Attention of one new token of many sequences over their cached keys, in Triton.

torch's kernels copy the cache when a mask is given; at thousands of sequences that copy is nearly all of
the time of a step. The result is that of masked softmax attention up to rounding.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 64  # cached columns at a time
_ROWS = 16  # least rows of a matrix product


@triton.jit
def _kernel(
    queries, keys, values, out, first, end, scale, sequence_stride, head_stride,
    GROUP: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0), tl.program_id(1)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
    at = (sequence * tl.num_programs(1) + head) * GROUP * DIM + rows[:, None] * DIM + dims[None]
    query = tl.load(queries + at, mask=rows[:, None] < GROUP, other=0.0)
    begin = tl.load(first + sequence)
    base = sequence.to(tl.int64) * sequence_stride + head * head_stride
    best = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, DIM], tl.float32)
    for start in range(begin // BLOCK * BLOCK, end, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        seen = (columns >= begin) & (columns < end)
        cells = base + columns[:, None] * DIM + dims[None]
        key = tl.load(keys + cells, mask=seen[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(key)) * scale
        scores = tl.where(seen[None], scores, -1e30)
        higher = tl.maximum(best, tl.max(scores, 1))
        shares = tl.where(seen[None], tl.exp(scores - higher[:, None]), 0.0)
        shrink = tl.exp(best - higher)
        total = total * shrink + tl.sum(shares, 1)
        value = tl.load(values + cells, mask=seen[:, None], other=0.0)
        found = found * shrink[:, None] + tl.dot(shares.to(value.dtype), value)
        best = higher
    result = found / total[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=rows[:, None] < GROUP)


def decode_attention(queries: Tensor, keys: Tensor, values: Tensor, first: Tensor, end: int) -> Tensor:
    """Attention of one row of each sequence over columns first .. end of the cache.

    Args:
        queries: [sequences, heads, head_dim], contiguous.
        keys: the whole cache, [sequences, kv_heads, capacity, head_dim], contiguous.
        values: as the keys.
        first: first column of each sequence, [sequences].
        end: one behind the last column.

    Returns:
        [sequences, heads x head_dim].
    """
    sequences, heads, dim = queries.shape
    kv_heads = keys.shape[1]
    out = torch.empty_like(queries)
    _kernel[(sequences, kv_heads)](
        queries, keys, values, out, first, end, dim**-0.5, keys.stride(0), keys.stride(1),
        GROUP=heads // kv_heads, DIM=dim, ROWS=_ROWS, BLOCK=_BLOCK,
    )  # fmt: skip
    return out.flatten(1)
