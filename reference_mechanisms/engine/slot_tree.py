"""Verify steps of draft trees of many requests as device programs of fixed shape.

The host says what the trees are and what it accepts of them; the accepted paths of all slots are brought
together in the cache with one program, before any other runs. Here for targets with attention layers only,
in `slot_hybrid.py` for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache, in_order
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.slot_paths import PathMover
from reference_mechanisms.engine.slot_rows import DenseSlots, SlotLayout, Slots
from reference_mechanisms.engine.slot_step import Shape, SlotBuffers
from reference_mechanisms.engine.target import Forward
from reference_mechanisms.kernels.slots.choice import slot_tree_kernels_for
from reference_mechanisms.kernels.slots.packing import Packed
from reference_mechanisms.kernels.slots.settling import turns_of
from reference_mechanisms.kernels.slots.trees import lay, tree_stand
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.verification.tree import ANCHOR


class SlotTreeRows(Protocol):
    """Rows of the trees of many requests; `DenseSlotTreeRows`, `slot_hybrid.HybridSlotTreeRows`."""

    def pack(self, slots: Tensor, starts: Tensor, counts: Tensor) -> Packed:
        """See `kernels.slots.packing.pack`."""
        ...

    def __call__(self, ids: Tensor, packed: Packed, parents: Tensor) -> Forward:
        """Run all rows.

        Args:
            ids: token ids of the rows, [rows]; any token for padding.
            packed: where they lie.
            parents: row of its seat that stands in front of each, [rows].
        """
        ...


class TreeSlots(Slots, Protocol):
    """Slots whose steps may verify trees of the host; `DenseTreeSlots`, `slot_hybrid.HybridTreeSlots`."""

    @property
    def levels(self) -> int:
        """Of the deepest tree, at most."""
        ...

    def tree_rows(self, rows: int, most: int, taps: Sequence[int]) -> SlotTreeRows:
        """So many rows of trees at a time; arguments as of `rows`."""
        ...


class SlotPathCache:
    """Keys and values whose accepted paths come together later; `engine.target.Cache`."""

    def __init__(self, kv: KVCache) -> None:
        """Of these keys and values."""
        self.kv, self.slots, self.capacity = kv, kv.slots, kv.capacity
        self._waiting: dict[int, tuple[int, list[int]]] = {}  # of a slot: position of the anchor, and path

    def length(self, slot: int) -> int:
        """Committed positions."""
        return self.kv.length(slot)

    def clear(self, slot: int) -> None:
        """Begin a new sequence."""
        self.kv.clear(slot)
        self._waiting.pop(slot, None)

    def commit(self, slot: int, kept: int) -> None:
        """Keep the first `kept` rows of the slot's last forward."""
        self.kv.commit(slot, kept)

    def commit_path(self, slot: int, path: Sequence[int]) -> None:
        """Keep a path of rows of the slot's last forward."""
        if not in_order(path):
            self._waiting[slot] = self.kv.length(slot), list(path)
        self.kv.commit(slot, len(path))

    def take_waiting(self) -> dict[int, tuple[int, list[int]]]:
        """Paths that were committed and lie apart: of each slot the anchor's position, and the rows."""
        found, self._waiting = self._waiting, {}
        return found


class DenseTreeSlots(DenseSlots):
    """As `slot_rows.DenseSlots`, for trees of the host."""

    def __init__(
        self, target: LlamaTarget, slots: int, positions: int, *, levels: int, graphs: Graphs
    ) -> None:
        """Allocate.

        Args:
            target: the model.
            slots: requests at a time.
            positions: of each.
            levels: of the deepest tree, at most.
            graphs: record what brings paths together.

        Raises:
            TargetError: it does not fit the device.
        """
        super().__init__(target, slots, positions)
        self.paths = SlotPathCache(self.kv)
        self.cache = self.paths
        self.levels = levels
        config = target.config
        self.tree_kernels = slot_tree_kernels_for(target.device, target.dtype, config.head_dim)
        self._move = PathMover(self.kv, levels, self.tree_kernels, graphs)

    def settle(self) -> None:
        """As in `slot_rows.Slots`: all slots at once."""
        waiting = self.paths.take_waiting()
        if waiting:
            self._move(waiting)

    def tree_rows(self, rows: int, most: int, taps: Sequence[int]) -> DenseSlotTreeRows:
        """As in `TreeSlots`."""
        return DenseSlotTreeRows(self, rows=rows, most=most, taps=taps)


class DenseSlotTreeRows:
    """Each row sees what is committed in its own slot, its ancestors and itself."""

    def __init__(self, slots: DenseTreeSlots, *, rows: int, most: int, taps: Sequence[int]) -> None:
        """Allocate the constants; arguments as of `slot_rows.Slots.rows`."""
        self._target, self._taps, self._kernels = slots.target, tuple(taps), slots.tree_kernels
        self._layout = SlotLayout(slots.kv, rows, most, slots.target.config.norm_eps)
        self._rotations = slots.target.rotations  # kept: a larger cache gives the target another table
        self._levels = slots.levels

    def pack(self, slots: Tensor, starts: Tensor, counts: Tensor) -> Packed:
        """As in `SlotTreeRows`."""
        return self._layout.pack(slots, starts, counts)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, packed: Packed, parents: Tensor) -> Forward:
        """As in `SlotTreeRows`."""
        stand = tree_stand(self._layout.stand(packed, self._rotations), lay(packed, parents, self._levels))
        return self._target.run(ids, self._kernels.ops(stand), self._taps)


class SlotTreeStep:
    """A step of one shape; calling it runs it. What is accepted, and what is next, the host says."""

    def __init__(self, buffers: SlotBuffers, slots: TreeSlots, shape: Shape) -> None:
        """Allocate the constants.

        Args:
            buffers: that all steps share.
            slots: of the buffers.
            shape: of this step.
        """
        self._buffers, self._shape = buffers, shape
        self._forward = slots.tree_rows(shape.rows, buffers.most, buffers.taps)

    @torch.inference_mode()
    def __call__(self) -> None:
        """Run all rows, and choose."""
        buffers, seats = self._buffers, self._shape.seats
        slots, most, _ = buffers.sittings[:, :seats]
        turns, parents = turns_of(buffers.state[slots]), buffers.parents[slots]
        packed = self._forward.pack(slots, turns.start, torch.where(most >= 0, turns.drafted + 1, 0))
        at = packed.seats.clamp(max=seats - 1), packed.inside
        buffers.take(self._forward(turns.ids[at], packed, parents[at]))


def depth_of(parents: Sequence[int]) -> int:
    """Levels of a tree whose rows have these parents, the anchor's first."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent == ANCHOR else depths[parent] + 1)
    return max(depths)
