"""Attention of packed rows over the cache: every row is an item of its own.

Rows are the batch dimension of the kernel, the query heads that share a key head its queries. So a
row is computed alike whatever other rows run with it, and the cache is read in place, broadcast
over the rows. How far a row reads depends on its own position only: a segment that goes over the end
of a bucket is cut there, because a longer read can round another way even where it is masked.

On the CPU each thread of torch's kernel works in its own slice of one buffer, and a matrix product in
float32 rounds by the alignment of its operands. Queries are therefore padded to whole groups of
eight, which makes every slice a multiple of 64 bytes: which thread takes a row no longer matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.rows import Segment

QUERY_GROUP = 8


class _Part(NamedTuple):
    """Rows of one segment in one bucket, made ready once for all layers."""

    first: int  # row
    rows: int
    writes: tuple[Tensor, ...]  # per layer [2 x kv_heads, rows, head_dim]
    keys: tuple[Tensor, ...]  # per layer [rows, kv_heads, span, head_dim]
    values: tuple[Tensor, ...]
    mask: Tensor  # [rows, 1, 1, span], added to the scores: 0 or -inf


class ChainAttention:
    """Attention of one forward; made once, called once a layer."""

    def __init__(
        self,
        segments: Sequence[Segment],
        cache: KVCache,
        heads: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Prepare the views and masks that all layers share."""
        self._heads = heads
        self._parts: list[_Part] = []
        first = 0
        for slot, start, rows in _cut_at_buckets(segments, cache.bucket):
            keys, values, span = cache.visible(slot, start + rows, rows)
            index = torch.arange(span, device=device)
            hidden = index > torch.arange(start, start + rows, device=device)[:, None]
            mask = torch.zeros((rows, span), dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
            writes = cache.window(slot, start, rows)
            self._parts.append(_Part(first, rows, writes, keys, values, mask[:, None, None]))
            first += rows

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        """Write keys and values of qkv [rows, heads + 2 x kv_heads, head_dim]; attend.

        Returns:
            [rows, heads x head_dim].
        """
        outputs = []
        for part in self._parts:
            mine = qkv[part.first : part.first + part.rows]
            part.writes[layer].copy_(mine[:, self._heads :].transpose(0, 1))
            queries = mine[:, : self._heads]
            outputs.append(attend_rows(queries, part.keys[layer], part.values[layer], part.mask))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def attend_rows(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention of rows that are items of their own.

    Args:
        queries: [rows, heads, head_dim].
        keys: [rows, kv_heads, span, head_dim], usually one cache broadcast over the rows.
        values: as the keys.
        mask: [rows, 1, 1, span], added to the scores.

    Returns:
        [rows, heads x head_dim].
    """
    rows = len(queries)
    grouped = queries.reshape(rows, keys.shape[1], -1, keys.shape[-1])
    group = grouped.shape[2]
    if queries.device.type == "cpu" and group % QUERY_GROUP:
        grouped = F.pad(grouped, (0, 0, 0, QUERY_GROUP - group % QUERY_GROUP))
    attended = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return attended[:, :, :group].reshape(rows, -1)


def _cut_at_buckets(segments: Sequence[Segment], bucket: int) -> Iterator[Segment]:
    for slot, start, rows in segments:
        end = start + rows
        for low in range(start - start % bucket, end, bucket):
            first, last = max(low, start), min(low + bucket, end)
            yield Segment(slot, first, last - first)
