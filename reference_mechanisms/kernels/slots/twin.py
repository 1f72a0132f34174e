"""Writing and reading a cache of many slots, in plain torch.

On a CPU each row reads as far as it would alone (`targets/attention.py`): whole buckets up to its own
position, and not the whole slot, so that it rounds alike in every engine. Elsewhere each row looks at its
whole slot, masked: nothing may ask the device.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.kernels.slots.packing import SlotStand
from reference_mechanisms.targets.attention import attend_rows
from reference_mechanisms.targets.layer_ops import TorchOps, rms_norm
from reference_mechanisms.targets.rope import rotate_


class _Part(NamedTuple):
    """Consecutive rows of one slot that read equally far."""

    rows: slice
    slot: int
    span: int
    mask: Tensor  # [rows, 1, 1, span], added to the scores


class SlotAttention:
    """Attention of one forward; made once, called once a layer."""

    def __init__(self, stand: SlotStand, dtype: torch.dtype) -> None:
        """Prepare the masks that all layers share."""
        self._stand = stand
        seen, place = stand.seen, stand.places[0]
        self._parts: list[_Part] | None = None
        self._mask = torch.empty(0)
        if place.device.type == "cpu":
            self._parts = list(_parts(stand, dtype))
        else:
            index = torch.arange(place.shape[2], device=place.device)
            self._mask = _mask(index, seen.low, seen.high, dtype)

    def __call__(self, layer: int, queries: Tensor) -> Tensor:
        """Attention of queries [rows, heads, head_dim] over the cache, [rows, heads x head_dim]."""
        place = self._stand.places[layer]
        kv_heads = place.shape[1] // 2
        if self._parts is None:
            mine = place[self._stand.packed.row_slots]
            return attend_rows(queries, mine[:, :kv_heads], mine[:, kv_heads:], self._mask)
        out = queries.new_zeros((len(queries), queries.shape[1] * queries.shape[2]))
        for rows, slot, span, mask in self._parts:
            both = place[slot, None, :, :span].expand(len(mask), -1, -1, -1)
            out[rows] = attend_rows(queries[rows], both[:, :kv_heads], both[:, kv_heads:], mask)
        return out


def torch_ops(stand: SlotStand) -> TorchOps:
    """`targets.layer_ops.LayerOps` of these rows."""
    kv_heads = stand.places[0].shape[1] // 2
    attention = SlotAttention(stand, stand.places[0].dtype)

    def attend(layer: int, qkv: Tensor) -> Tensor:
        heads = qkv.shape[1] - 2 * kv_heads
        write(stand, layer, qkv[:, heads:])
        return attention(layer, qkv[:, :heads])

    return TorchOps(stand.eps, kv_heads, stand.rotations[stand.packed.positions], attend)


def write(stand: SlotStand, layer: int, keys_and_values: Tensor) -> None:
    """Put rows [rows, 2 x kv_heads, head_dim] into a layer's cache; padding goes to the scratch slot."""
    packed = stand.packed
    stand.places[layer].transpose(1, 2)[packed.row_slots, packed.positions] = keys_and_values


def keep(rows: Tensor, norms: Tensor | None, stand: SlotStand) -> None:
    """Put keys and values of several layers into their caches, keys normed and rotated.

    Args:
        rows: [rows, layers, 2 x kv_heads, head_dim], keys before values; may be overwritten.
        norms: weights [layers, kv_heads, head_dim] of the norm per key head, if there is one.
        stand: where the rows stand; a place for each layer.
    """
    rotations = stand.rotations[stand.packed.positions]
    for layer in range(len(stand.places)):
        both = rows[:, layer]
        keys = both[:, : both.shape[1] // 2]
        if norms is not None:
            keys.copy_(rms_norm(keys, norms[layer], stand.eps))
        rotate_(keys, rotations)
        write(stand, layer, both)


def _parts(stand: SlotStand, dtype: torch.dtype) -> list[_Part]:
    """Rows of the seats, cut where a row reads one bucket more; padding reads nothing."""
    packed, seen, capacity = stand.packed, stand.seen, stand.places[0].shape[2]
    count = int(packed.counts.sum())
    slots = packed.row_slots[:count].tolist()
    spans = [-(-high // stand.bucket) * stand.bucket for high in seen.high[:count].tolist()]
    found: list[_Part] = []
    first = 0
    index = torch.arange(capacity)
    for (slot, span), rows in itertools.groupby(zip(slots, spans, strict=True)):
        last = first + len(list(rows))
        mine = slice(first, last)
        mask = _mask(index[:span], seen.low[mine], seen.high[mine], dtype)
        found.append(_Part(mine, slot, span, mask))
        first = last
    return found


def _mask(index: Tensor, low: Tensor, high: Tensor, dtype: torch.dtype) -> Tensor:
    hidden = (index < low[:, None]) | (index >= high[:, None])
    mask = torch.zeros(hidden.shape, dtype=dtype, device=index.device)
    return mask.masked_fill_(hidden, -torch.inf)[:, None, None]
