"""Attention that sees the first positions of a cache, its last ones, and nothing between.

Source: attention sinks with a sliding window (StreamingLLM, arXiv 2309.17453), at the rotary positions that
the keys have. It is another function than the target's attention: for a first-level verifier, which decides
nothing. What is read is copied, sinks and window, so that its price does not grow with the context; trees are
masked side by side. Rows of one forward may round by what runs with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.engine.cache import KVCache, Window
from reference_mechanisms.engine.rows import Rows


class _Part(NamedTuple):
    """Rows of one request."""

    first: int
    rows: int
    slot: int
    start: int
    places: Tensor  # of the cache that are read, [keys]
    mask: Tensor  # bool [rows, keys]


class WindowAttention:
    """Attention of one forward; made once, called once a layer."""

    def __init__(self, rows: Rows, cache: KVCache, heads: int, window: Window) -> None:
        """Choose what each row reads.

        Args:
            rows: chains or trees.
            cache: of the target.
            heads: of the queries.
            window: what a row sees beside its own ancestors in the forward.
        """
        self._heads, self._cache = heads, cache
        self._parts: list[_Part] = []
        first, device = 0, cache.device
        for slot, start, count in rows.segments:
            mine = slice(first, first + count)
            parents = range(-1, count - 1) if rows.parents is None else rows.parents[mine]
            at = torch.tensor(rows.positions[mine], device=device)
            sinks = min(window.sinks, start)
            begin = max(sinks, start - window.recent + 1)
            old = torch.cat((torch.arange(sinks, device=device), torch.arange(begin, start, device=device)))
            places = torch.cat((old, torch.arange(start, start + count, device=device)))
            positions = torch.cat((old, at))
            near = (at[:, None] - positions < window.recent) | (positions < window.sinks)
            own = torch.cat((near.new_ones(count, len(old)), _ancestors(parents).to(device)), dim=1)
            self._parts.append(_Part(first, count, slot, start, places, near & own))
            first += count

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        """Write keys and values of qkv [rows, heads + 2 x kv_heads, head_dim]; attend.

        Returns:
            [rows, heads x head_dim].
        """
        outputs = []
        for first, count, slot, start, places, mask in self._parts:
            mine = qkv[first : first + count]
            self._cache.window(slot, start, count)[layer].copy_(mine[:, self._heads :].transpose(0, 1))
            keys, values = self._cache.read(layer, slot, places)
            queries = mine[:, : self._heads].transpose(0, 1)[None]
            found = F.scaled_dot_product_attention(
                queries, keys[None], values[None], attn_mask=mask, enable_gqa=True
            )
            outputs.append(found[0].transpose(0, 1).flatten(1))
        return torch.cat(outputs)


def _ancestors(parents: Sequence[int]) -> Tensor:
    """Which rows each row sees of its own forward: its ancestors and itself, bool [rows, rows]."""
    seen = torch.eye(len(parents), dtype=torch.bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen
