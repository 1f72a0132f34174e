"""Keys and values that a drafter keeps of each request, and attention over them.

Only committed positions are part of a cache. Rows of a running draft are written behind its length, seen
by their own attention, and overwritten: undoing a draft costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.blocks import Reach, Sizes, attend, visible
from reference_mechanisms.engine.cache import KVCache

BUCKET = 64  # positions; attention reads whole buckets


def new_context(
    sizes: Sizes, layers: int, capacity: int, dtype: torch.dtype, device: torch.device
) -> KVCache:
    """A cache of one request."""
    return KVCache(
        layers=layers,
        slots=1,
        kv_heads=sizes.kv_heads,
        capacity=capacity,
        head_dim=sizes.head_dim,
        bucket=BUCKET,
        dtype=dtype,
        device=device,
    )


def commit(context: KVCache, keys_and_values: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Append committed positions: keys and values [rows, kv_heads, head_dim] of each layer."""
    rows = len(keys_and_values[0][0])
    for place, both in zip(context.window(0, context.length(0), rows), keys_and_values, strict=True):
        place.copy_(torch.cat(both, dim=1).transpose(0, 1))
    context.commit(0, rows)


class Span(NamedTuple):
    """Consecutive rows of one request."""

    context: KVCache
    start: int  # position of the first row; what lies before it is seen
    rows: int


class _Part(NamedTuple):
    first: int  # row
    rows: int
    writes: tuple[Tensor, ...]  # per layer [2 x kv_heads, rows, head_dim]
    keys: tuple[Tensor, ...]  # per layer [1, kv_heads, span, head_dim]
    values: tuple[Tensor, ...]
    masks: dict[Reach, Tensor]  # [rows, span]


class ContextAttention:
    """Attention of one forward: each row over its request's cache and the rows of its own span."""

    def __init__(self, spans: Sequence[Span], reaches: Sequence[Reach], device: torch.device) -> None:
        """Prepare views and masks once for all layers.

        Args:
            spans: in the order of the rows, covering all of them.
            reaches: of each layer.
            device: of the caches.
        """
        self._reaches = reaches
        self._parts: list[_Part] = []
        first = 0
        for context, start, rows in spans:
            keys, values, span = context.visible(0, start + rows, 1)
            index = torch.arange(span, device=device)
            mine = index[start : start + rows]
            masks = {reach: visible(mine, index, reach) & (index < start + rows) for reach in set(reaches)}
            writes = context.window(0, start, rows)
            self._parts.append(_Part(first, rows, writes, keys, values, masks))
            first += rows

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write keys and values [..., kv_heads, head_dim], attend with queries [..., heads, head_dim].

        Returns:
            [..., heads x head_dim].
        """
        rows = queries.shape[:-2]
        queries, both = queries.flatten(0, -3), torch.cat((keys, values), dim=-2).flatten(0, -3)
        found = []
        for part in self._parts:
            mine = slice(part.first, part.first + part.rows)
            part.writes[layer].copy_(both[mine].transpose(0, 1))
            mask = part.masks[self._reaches[layer]]
            found.append(attend(queries[mine], part.keys[layer][0], part.values[layer][0], mask))
        return torch.cat(found).view(*rows, -1)
