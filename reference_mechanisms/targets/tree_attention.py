"""Attention of draft trees: every row sees the cache, its own ancestors and itself, in the order of a chain.

A mask over a cache that holds the tree's nodes side by side would be exact too, but not to the bit: the
ancestors' keys would stand at other places of the sum than autoregressive decoding has them, and round
another way. So the tree is taken path by path: the keys and values of one path from the anchor to a leaf are
written behind the length as a chain, and the rows that are new on this path attend exactly as the rows of
that chain do, with the kernel, the shapes and the padding of `attention.py`. Behind the last path the rows
are written in their own order, from which the cache gathers the accepted ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.targets.attention import ChainAttention, attend_rows
from reference_mechanisms.targets.window_attention import WindowAttention


class _Part(NamedTuple):
    """Rows of one path whose read ends in the same bucket."""

    rows: Tensor  # of the forward, int64
    keys: tuple[Tensor, ...]  # per layer [rows, kv_heads, span, head_dim]
    values: tuple[Tensor, ...]
    mask: Tensor  # [rows, 1, 1, span], added to the scores


class _Path(NamedTuple):
    """One path from the anchor to a leaf."""

    rows: Tensor  # of the forward, the whole path
    writes: tuple[Tensor, ...]  # per layer [2 x kv_heads, rows, head_dim]
    parts: Sequence[_Part]


class _Tree(NamedTuple):
    first: int  # row of the forward
    rows: int
    paths: Sequence[_Path]
    writes: tuple[Tensor, ...]  # of all rows in their own order


class TreeAttention:
    """Attention of one forward; made once, called once a layer. Chains are trees of one path."""

    def __init__(
        self,
        segments: Sequence[Segment],
        parents: Sequence[int],
        cache: KVCache,
        heads: int,
        dtype: torch.dtype,
    ) -> None:
        """Prepare the views and masks that all layers share.

        Args:
            segments: one for each request.
            parents: of all rows, as in `Rows`.
            cache: of the target.
            heads: of the queries.
            dtype: of the scores.

        Raises:
            ValueError: a parent does not come before its row.
        """
        self._heads = heads
        self._trees: list[_Tree] = []
        first = 0
        for slot, start, rows in segments:
            mine = parents[first : first + rows]
            paths = [
                _prepared(path, new, Segment(slot, start, len(path)), first, cache, dtype)
                for path, new in _paths(mine)
            ]
            self._trees.append(_Tree(first, rows, paths, cache.window(slot, start, rows)))
            first += rows

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        """Write keys and values of qkv [rows, heads + 2 x kv_heads, head_dim]; attend.

        Returns:
            [rows, heads x head_dim].
        """
        outputs = qkv.new_empty(len(qkv), self._heads * qkv.shape[-1])
        queries, both = qkv[:, : self._heads], qkv[:, self._heads :].transpose(0, 1)
        for tree in self._trees:
            for path in tree.paths:
                path.writes[layer].copy_(both[:, path.rows])
                for part in path.parts:
                    attended = attend_rows(
                        queries[part.rows], part.keys[layer], part.values[layer], part.mask
                    )
                    outputs[part.rows] = attended
            if len(tree.paths) > 1:
                tree.writes[layer].copy_(both[:, tree.first : tree.first + tree.rows])
        return outputs


def attention_of(
    rows: Rows, cache: KVCache, heads: int, dtype: torch.dtype
) -> ChainAttention | TreeAttention | WindowAttention:
    """Attention of a forward, arguments as of the three; a forward without parents runs chains."""
    if cache.seen is not None:
        return WindowAttention(rows, cache, heads, cache.seen)
    if rows.parents is None:
        return ChainAttention(rows.segments, cache, heads, dtype, cache.device)
    return TreeAttention(rows.segments, rows.parents, cache, heads, dtype)


def _paths(parents: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Every path from the first row to a leaf, with the indices on it of rows that no earlier path has."""
    inner = set(parents)
    met: set[int] = set()
    for row, parent in enumerate(parents):
        if not -1 <= parent < row or (parent == -1) != (row == 0):
            raise ValueError(f"row {row} has parent {parent}: rows of a tree follow one first row, in order")
        if row in inner:
            continue
        path = [row]
        while parents[path[0]] != -1:
            path.insert(0, parents[path[0]])
        yield path, [index for index, one in enumerate(path) if one not in met]
        met |= set(path)


def _prepared(
    path: Sequence[int], new: Sequence[int], chain: Segment, first: int, cache: KVCache, dtype: torch.dtype
) -> _Path:
    """Views and masks of the rows that are new on a path, cut at the ends of buckets as chains are."""
    slot, start, count = chain
    device = cache.device
    parts = []
    for bucket in sorted({(start + index) // cache.bucket for index in new}):
        here = [index for index in new if (start + index) // cache.bucket == bucket]
        keys, values, span = cache.visible(slot, start + here[-1] + 1, len(here))
        positions = torch.tensor([start + index for index in here], device=device)
        hidden = torch.arange(span, device=device) > positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
        rows = torch.tensor([first + path[index] for index in here], device=device)
        parts.append(_Part(rows, keys, values, mask[:, None, None]))
    whole = torch.tensor([first + row for row in path], device=device)
    return _Path(whole, cache.window(slot, start, count), parts)
