"""Verify steps of draft trees of many requests as device programs of fixed shape.

The host says what the trees are and what it accepts of them; the accepted paths of all slots are brought
together in the cache with one program, before any other runs. Targets with attention layers only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.slot_rows import DenseSlots, SlotLayout
from reference_mechanisms.engine.slot_step import Shape, SlotBuffers
from reference_mechanisms.engine.staging import send
from reference_mechanisms.engine.target import Forward
from reference_mechanisms.kernels.slots.choice import slot_tree_kernels_for
from reference_mechanisms.kernels.slots.packing import Packed
from reference_mechanisms.kernels.slots.settling import turns_of
from reference_mechanisms.kernels.slots.trees import Moved, lay, tree_stand
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.verification.tree import ANCHOR


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
        if list(path) != list(range(len(path))):
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
        self.levels, self._scratch = levels, slots
        config = target.config
        self.tree_kernels = slot_tree_kernels_for(target.device, target.dtype, config.head_dim)
        # Slot, anchor's position and path of each seat.
        self._straight = list(range(levels + 1))
        self._moved = torch.zeros((slots, levels + 3), dtype=torch.int64, device=target.device)
        self._send({})
        self._move = graphs.program(self._moving)

    def settle(self) -> None:
        """As in `slot_rows.Slots`: all slots at once."""
        waiting = self.paths.take_waiting()
        if waiting:
            self._send(waiting)
            self._move()

    def _send(self, waiting: dict[int, tuple[int, list[int]]]) -> None:
        seats = [
            [slot, start, *path, *self._straight[len(path) :]] for slot, (start, path) in waiting.items()
        ]
        empty = [[self._scratch, 0, *self._straight]] * (self._scratch - len(seats))
        send(self._moved, [*seats, *empty])

    @torch.inference_mode()
    def _moving(self) -> None:
        slots, starts, paths = self._moved[:, 0], self._moved[:, 1], self._moved[:, 2:]
        moved = Moved(slots.contiguous(), starts.contiguous(), paths.contiguous())
        self.tree_kernels.move(self.kv.places(), moved)


class SlotTreeRows:
    """Each row sees what is committed in its own slot, its ancestors and itself."""

    def __init__(self, slots: DenseTreeSlots, *, rows: int, most: int, taps: Sequence[int]) -> None:
        """Allocate the constants; arguments as of `slot_rows.Slots.rows`."""
        self._target, self._taps, self._kernels = slots.target, tuple(taps), slots.tree_kernels
        self._layout = SlotLayout(slots.kv, rows, most, slots.target.config.norm_eps)
        self._rotations = slots.target.rotations  # kept: a larger cache gives the target another table
        self._levels = slots.levels

    def pack(self, slots: Tensor, starts: Tensor, counts: Tensor) -> Packed:
        """As in `slot_rows.SlotRows`."""
        return self._layout.pack(slots, starts, counts)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, packed: Packed, parents: Tensor) -> Forward:
        """Run all rows.

        Args:
            ids: token ids of the rows, [rows]; any token for padding.
            packed: where they lie.
            parents: row of its seat that stands in front of each, [rows].
        """
        stand = tree_stand(self._layout.stand(packed, self._rotations), lay(packed, parents, self._levels))
        return self._target.run(ids, self._kernels.ops(stand), self._taps)


class SlotTreeStep:
    """A step of one shape; calling it runs it. What is accepted, and what is next, the host says."""

    def __init__(self, buffers: SlotBuffers, slots: DenseTreeSlots, shape: Shape) -> None:
        """Allocate the constants.

        Args:
            buffers: that all steps share.
            slots: of the buffers.
            shape: of this step.
        """
        self._buffers, self._shape = buffers, shape
        self._forward = SlotTreeRows(slots, rows=shape.rows, most=buffers.most, taps=buffers.taps)

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
