"""Static KV cache: one buffer for the whole life of the engine, a length per request.

Rows are written behind the length and become part of the sequence only when they are committed, so
undoing rejected draft tokens costs nothing: the length simply does not move over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.verification.walking import compact


class Window(NamedTuple):
    """What a row sees of a cache that is not read whole."""

    sinks: int  # first positions
    recent: int  # last positions, its own among them


def in_order(path: Sequence[int]) -> bool:
    """Whether the rows of a path lie as those of a chain do, so that nothing is to be moved."""
    return list(path) == list(range(len(path)))


class KVCache:
    """Keys and values of `slots` requests."""

    def __init__(  # noqa: PLR0913 - the six sizes of the buffer
        self,
        *,
        layers: int,
        slots: int,
        kv_heads: int,
        capacity: int,  # positions per slot, rounded up to `bucket`
        head_dim: int,
        bucket: int,  # attention reads whole buckets of positions
        dtype: torch.dtype,
        device: torch.device,
        window: Window | None = None,  # None: every row sees all positions before it
    ) -> None:
        """Allocate everything. Zeros, because attention multiplies masked values by 0, and 0 x NaN is NaN."""
        self.slots, self.dtype, self.device = slots, dtype, device
        self.seen = window
        self.bucket = bucket
        self.capacity = -(-capacity // bucket) * bucket
        self._kv_heads = kv_heads
        # Keys and values of a layer lie side by side, so that a step writes both with one copy.
        self._data = torch.zeros(
            (layers, slots, 2 * kv_heads, self.capacity, head_dim), dtype=dtype, device=device
        )
        self._lengths = [0] * slots
        self._marks: dict[int, int] = {}

    def length(self, slot: int) -> int:
        """Committed positions of a slot."""
        return self._lengths[slot]

    def clear(self, slot: int) -> None:
        """Begin a new sequence; what the slot held stays in the buffer, unseen."""
        self._lengths[slot] = 0
        self._marks.pop(slot, None)

    def commit(self, slot: int, kept: int) -> None:
        """Keep the first `kept` rows that were written behind the length."""
        length = self._lengths[slot] + kept
        if kept < 0 or length > self.capacity:
            raise ValueError(f"cannot keep {kept} rows: {length} positions in a cache of {self.capacity}")
        self._lengths[slot] = length

    def mark(self, slot: int) -> None:
        """What is committed from here on may be taken back."""
        self._marks[slot] = self._lengths[slot]

    def rewind(self, slot: int, kept: int) -> None:
        """Take back all but the first `kept` rows that were committed since `mark`; the mark is gone.

        Raises:
            ValueError: there is no mark, or there are not so many rows.
        """
        mark = self._marks.pop(slot, None)
        if mark is None or not 0 <= kept <= self._lengths[slot] - mark:
            raise ValueError(f"slot {slot}: cannot go back to {kept} rows behind the mark, which is {mark}")
        self._lengths[slot] = mark + kept

    def gather(self, slot: int, path: Sequence[int]) -> None:
        """Move rows that were written behind the length together: row path[j] becomes row j.

        Args:
            slot: of the cache.
            path: rows, ascending.
        """
        if in_order(path):
            return
        sources = torch.tensor(path, device=self.device)
        destinations = torch.arange(len(path), device=self.device)
        for layer in self.window(slot, self._lengths[slot], path[-1] + 1):
            compact(layer, sources, destinations)

    def commit_path(self, slot: int, path: Sequence[int]) -> None:
        """Keep a path of the rows that were written behind the length; arguments as of `gather`."""
        self.gather(slot, path)
        self.commit(slot, len(path))

    def window(self, slot: int, start: int, count: int) -> tuple[Tensor, ...]:
        """Where `count` rows go, per layer: [2 x kv_heads, count, head_dim], keys before values."""
        if start < 0 or start + count > self.capacity:
            raise ValueError(f"positions {start}..{start + count} lie outside a cache of {self.capacity}")
        return self._data[:, slot, :, start : start + count].unbind(0)

    def places(self) -> tuple[Tensor, ...]:
        """All of it, per layer: [slots, 2 x kv_heads, capacity, head_dim], keys before values."""
        return self._data.unbind(0)

    def read(self, layer: int, slot: int, places: Tensor) -> tuple[Tensor, Tensor]:
        """A copy of the keys and of the values at some positions, each [kv_heads, positions, head_dim].

        Args:
            layer: of the target.
            slot: of the cache.
            places: positions, int64.
        """
        found = self._data[layer, slot].index_select(1, places)
        return found[: self._kv_heads], found[self._kv_heads :]

    def visible(self, slot: int, end: int, rows: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], int]:
        """Keys and values that hold positions before `end`, once for each of `rows` rows, without a copy.

        Returns:
            Keys and values per layer, [rows, kv_heads, span, head_dim], and the span: `end` rounded
            up to whole buckets.
        """
        span = -(-end // self.bucket) * self.bucket
        data = self._data[:, slot, :, :span].unsqueeze(1)
        keys, values = data[:, :, : self._kv_heads], data[:, :, self._kv_heads :]
        shape = (-1, rows, -1, -1, -1)
        return keys.expand(shape).unbind(0), values.expand(shape).unbind(0), span
