"""Rows of many requests, one behind the other, laid out by the device itself.

A step has a fixed number of seats, each a request in a slot of the cache, and a fixed number of rows. How
many rows a seat has is a number on the device; what is left over is padding. Padding stands in a slot of its
own behind those of the requests (scratch), so it writes where nobody reads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.kernels.step.twin import Seen


class Packed(NamedTuple):
    """Where the rows of a step stand; all int64."""

    slots: Tensor  # [seats]: slot of the cache
    first: Tensor  # [seats]: first row
    counts: Tensor  # [seats]: rows; 0: the seat is empty
    seats: Tensor  # [rows]: seat of each row; one more than there are for padding
    row_slots: Tensor  # [rows]
    positions: Tensor  # [rows]: in the request's own sequence
    inside: Tensor  # [rows]: place among the rows of its seat


class SlotStand(NamedTuple):
    """Where the rows of a forward stand, and what they see."""

    packed: Packed
    seen: Seen  # by each row, positions of its own slot
    rotations: Tensor  # of all positions, `targets.rope.rotation_table`
    places: tuple[Tensor, ...]  # cache of each layer, [slots, 2 x kv_heads, capacity, head_dim]
    eps: float  # of the norms
    most: int  # rows of a seat, at most
    bucket: int  # the twin reads whole buckets of positions, as `engine.cache.KVCache`


def pack(slots: Tensor, starts: Tensor, counts: Tensor, index: Tensor, scratch: int, capacity: int) -> Packed:
    """Lay the rows of all seats out, one seat behind the other.

    Args:
        slots: of the seats, [seats].
        starts: position of each seat's first row, [seats].
        counts: rows of each, [seats]; together no more than there are.
        index: 0, 1, .. up to the rows of the step, [rows].
        scratch: slot of the padding.
        capacity: positions of a slot.
    """
    ends = counts.cumsum(0)
    first = ends - counts
    seats = torch.searchsorted(ends, index, right=True)
    real = seats < len(slots)
    at = seats.clamp(max=len(slots) - 1)
    inside = torch.where(real, index - first[at], 0)
    row_slots = torch.where(real, slots[at], scratch)
    positions = torch.where(real, starts[at] + inside, index % capacity)
    return Packed(slots, first, counts, seats, row_slots, positions, inside)


def chains(packed: Packed) -> Seen:
    """Each row sees its own slot up to and with itself."""
    return Seen(torch.zeros_like(packed.positions), packed.positions + 1)
