"""A fixed number of rows of many requests through a target, laid out by numbers of the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.graphs import hold_fit
from reference_mechanisms.engine.target import Cache, Forward, Target
from reference_mechanisms.kernels.slots.choice import SlotKernels, slot_kernels_for
from reference_mechanisms.kernels.slots.packing import Packed, SlotStand, chains, pack
from reference_mechanisms.targets.llama import LlamaTarget


class SlotRows(Protocol):
    """Rows of many requests; `DenseSlotRows`, `slot_hybrid.HybridSlotRows`."""

    def pack(self, slots: Tensor, starts: Tensor, counts: Tensor) -> Packed:
        """See `kernels.slots.packing.pack`."""
        ...

    def __call__(self, ids: Tensor, packed: Packed) -> Forward:
        """Run all rows.

        Args:
            ids: token ids of the rows, [rows]; any token for padding.
            packed: where they stand.
        """
        ...

    def keep(self, packed: Packed, counts: Tensor) -> None:
        """Make the first so many rows of each seat, [seats], part of what is cached."""
        ...


class Slots(Protocol):
    """A target and a cache of many requests, its last slot scratch; `DenseSlots`, `slot_hybrid.HybridSlots`.

    Who decides what stays of a step: the device, by `SlotRows.keep`; or the host, by a commit behind `ran`.
    """

    @property
    def target(self) -> Target:
        """The model."""
        ...

    @property
    def cache(self) -> Cache:
        """Where the host counts what is committed."""
        ...

    @property
    def kernels(self) -> SlotKernels:
        """Of the steps."""
        ...

    def rows(self, rows: int, most: int, taps: Sequence[int]) -> SlotRows:
        """So many rows at a time, padding among them.

        Args:
            rows: at once.
            most: of a request.
            taps: layers whose output is wanted.
        """
        ...

    def ran(self, slot: int, first: int) -> None:
        """The newest step ran rows of this slot, from its row `first` on; the host will commit some."""
        ...

    def settle(self) -> None:
        """Bring what the host has committed into the cache; before any other program runs."""
        ...


class DenseSlots:
    """Of a target with attention layers only."""

    def __init__(self, target: LlamaTarget, slots: int, positions: int) -> None:
        """Allocate.

        Args:
            target: the model.
            slots: requests at a time.
            positions: of each.

        Raises:
            TargetError: it does not fit the device.
        """
        config = target.config
        numbers = config.layers * 2 * config.kv_heads * positions * config.head_dim * (slots + 1)
        needed = numbers * target.dtype.itemsize
        hold_fit(needed, target.device, f"keys and values of {slots} requests")
        self.target: LlamaTarget = target
        self.kv: KVCache = target.new_cache(slots + 1, positions)
        self.cache: Cache = self.kv
        self.kernels = slot_kernels_for(target.device, target.dtype, config.head_dim)

    def rows(self, rows: int, most: int, taps: Sequence[int]) -> DenseSlotRows:
        """As in `Slots`."""
        return DenseSlotRows(self, rows=rows, most=most, taps=taps)

    def ran(self, slot: int, first: int) -> None:
        """As in `Slots`: keys and values of all rows lie in the cache already."""

    def settle(self) -> None:
        """As in `Slots`."""


class DenseSlotRows:
    """Each row sees its own slot up to its own position; keys and values are written as it runs."""

    def __init__(self, slots: DenseSlots, *, rows: int, most: int, taps: Sequence[int]) -> None:
        """Allocate the constants; arguments as of `Slots.rows`."""
        self._target, self._taps, self._kernels = slots.target, tuple(taps), slots.kernels
        self._layout = SlotLayout(slots.kv, rows, most, slots.target.config.norm_eps)
        self._rotations = slots.target.rotations  # kept: a larger cache gives the target another table

    def pack(self, slots: Tensor, starts: Tensor, counts: Tensor) -> Packed:
        """As in `SlotRows`."""
        return self._layout.pack(slots, starts, counts)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, packed: Packed) -> Forward:
        """As in `SlotRows`."""
        stand = self._layout.stand(packed, self._rotations)
        return self._target.run(ids, self._kernels.ops(stand), self._taps)

    def keep(self, packed: Packed, counts: Tensor) -> None:
        """As in `SlotRows`: they lie in the cache already."""


class SlotLayout:
    """Where rows stand in a cache of many slots."""

    def __init__(self, cache: KVCache, rows: int, most: int, eps: float) -> None:
        """Allocate the constants.

        Args:
            cache: its last slot is scratch, the others are of requests.
            rows: at once.
            most: of a request.
            eps: of the norms.
        """
        self._places, self._capacity, self._scratch = cache.places(), cache.capacity, cache.slots - 1
        self._bucket, self._most, self._eps = cache.bucket, most, eps
        self._index = torch.arange(rows, device=cache.device)

    def pack(self, slots: Tensor, starts: Tensor, counts: Tensor) -> Packed:
        """See `kernels.slots.packing.pack`."""
        return pack(slots, starts, counts, self._index, self._scratch, self._capacity)

    def stand(self, packed: Packed, rotations: Tensor) -> SlotStand:
        """Each row sees its own slot up to and with itself."""
        seen = chains(packed)
        return SlotStand(packed, seen, rotations, self._places, self._eps, self._most, self._bucket)
