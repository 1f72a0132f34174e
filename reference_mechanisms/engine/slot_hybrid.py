"""Many requests on a hybrid target, in steps of fixed shape.

The attention layers are those of `slot_rows.py`, with the rotation done before. The recurrent ones run from
the committed state of each row's slot, and leave a log; of it is replayed what was accepted: by the device
inside the step, or before the next program where the host decides. A step without drafts takes the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache, in_order
from reference_mechanisms.engine.graphs import Graphs, hold_fit
from reference_mechanisms.engine.slot_paths import PathMover
from reference_mechanisms.engine.slot_rows import SlotLayout
from reference_mechanisms.engine.staging import send
from reference_mechanisms.engine.target import Forward
from reference_mechanisms.kernels.slots.choice import (
    slot_delta_kernels_for,
    slot_kernels_for,
    slot_tree_kernels_for,
)
from reference_mechanisms.kernels.slots.delta import (
    KeptRows,
    SlotDeltaPlan,
    chain_plan,
    new_states,
    tree_plan,
)
from reference_mechanisms.kernels.slots.packing import Packed
from reference_mechanisms.kernels.slots.trees import lay, tree_stand
from reference_mechanisms.kernels.step import delta
from reference_mechanisms.kernels.step.delta import new_log
from reference_mechanisms.kernels.step.delta_form import KernelDeltaMixer
from reference_mechanisms.targets.gated_delta import STATE_TYPE, DeltaInputs, DeltaMixer
from reference_mechanisms.targets.hybrid import HybridTarget, Mixing
from reference_mechanisms.targets.layer_ops import LayerOps


class Kept(NamedTuple):
    """What the host has committed of a slot."""

    first: int  # row of the log
    start: int  # position of that row
    path: Sequence[int]  # rows behind `first`


class SlotHybridCache:
    """Keys, values and states of many requests; `engine.target.Cache`."""

    def __init__(self, target: HybridTarget, slots: int, positions: int) -> None:
        """Allocate.

        Args:
            target: the model.
            slots: of requests, and scratch.
            positions: of each.
        """
        self.kv: KVCache = target.new_cache(slots, positions).kv
        self.slots, self.capacity = slots, self.kv.capacity
        config = target.config
        layers = config.kinds.count("linear_attention")
        self.states = new_states(config.delta, layers, slots, target.dtype, target.device)
        self._ran: dict[int, int] = {}  # first row of each slot that the host may commit rows of
        self._waiting: dict[int, Kept] = {}

    def length(self, slot: int) -> int:
        """Committed positions."""
        return self.kv.length(slot)

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """Begin a new sequence, from empty states."""
        self.kv.clear(slot)
        self._ran.pop(slot, None)
        self._waiting.pop(slot, None)
        for part in self.states:
            part[:, slot].zero_()

    def ran(self, slot: int, first: int) -> None:
        """See `slot_rows.Slots.ran`."""
        self._ran[slot] = first

    def commit(self, slot: int, kept: int) -> None:
        """Keep the first `kept` rows: by the host's word if it was told of them, else the device has."""
        self.commit_path(slot, range(kept))

    def commit_path(self, slot: int, path: Sequence[int]) -> None:
        """The same for a path of rows, each the parent of the next."""
        first = self._ran.pop(slot, None)
        if first is not None and path:
            self._waiting[slot] = Kept(first, self.kv.length(slot), path)
        self.kv.commit(slot, len(path))

    def take_waiting(self) -> dict[int, Kept]:
        """What the host has committed since it was asked last, by slot."""
        found, self._waiting = self._waiting, {}
        return found


class HybridSlots:
    """As `slot_rows.DenseSlots`."""

    trees = False  # whether steps verify them

    def __init__(
        self, target: HybridTarget, slots: int, positions: int, *, rows: int, most: int, graphs: Graphs
    ) -> None:
        """Allocate.

        Args:
            target: the model; its recurrent layers run row after row.
            slots: requests at a time.
            positions: of each.
            rows: of the largest program.
            most: of a request, in a step that the host decides on.
            graphs: record the replay of what the host decides.

        Raises:
            TargetError: it does not fit the device.
        """
        config, device, dtype = target.config, target.device, target.dtype
        layers = config.kinds.count("linear_attention")
        needed = slot_bytes(target, slots, positions, rows, trees=self.trees)
        hold_fit(needed, device, f"keys, values and states of {slots} requests")
        self.target: HybridTarget = target
        self.cache = SlotHybridCache(target, slots + 1, positions)
        self.kernels = slot_kernels_for(device, dtype, config.head_dim)
        self.delta = slot_delta_kernels_for(device, dtype)
        self.log = new_log(config.delta, layers, rows, dtype, device)
        self._most, self._scratch = most, slots
        # Slot, first row, kept rows and path of each seat, as the host has it.
        self._kept = torch.zeros((slots, 3 + most), dtype=torch.int64, device=device)
        self._replay = graphs.program(self._replaying)

    def rows(self, rows: int, most: int, taps: Sequence[int]) -> HybridSlotRows:
        """As in `slot_rows.Slots`."""
        return HybridSlotRows(self, rows=rows, most=most, taps=taps)

    def ran(self, slot: int, first: int) -> None:
        """As in `slot_rows.Slots`."""
        self.cache.ran(slot, first)

    def settle(self) -> None:
        """As in `slot_rows.Slots`: replay what the host has committed, all slots at once."""
        waiting = self.cache.take_waiting()
        if not waiting:
            return
        seats = []
        for slot, (first, _, path) in waiting.items():
            seats.append([slot, first, len(path), *path, *[0] * (self._most - len(path))])
        empty = [[self._scratch, *[0] * (2 + self._most)]] * (self._scratch - len(seats))
        send(self._kept, [*seats, *empty])
        self._replay()
        self._moved(waiting)

    def _moved(self, waiting: Mapping[int, Kept]) -> None:
        """Keys and values of chains lie in order already."""

    @torch.inference_mode()
    def _replaying(self) -> None:
        slots, first, counts = (self._kept[:, n].contiguous() for n in range(3))
        kept = KeptRows(slots, first, counts, self._kept[:, 3:].contiguous())
        self.delta.replay(self.cache.states, self.log, kept)

    def mixing(self, rotations: Tensor, ops: LayerOps, plan: SlotDeltaPlan) -> Mixing:
        """How rows see each other.

        Args:
            rotations: of each row.
            ops: of the attention layers; they leave a head as it is.
            plan: of the recurrent ones.
        """

        def attend(layer: int, qkv: Tensor) -> Tensor:
            return ops.attend(layer, qkv, None)

        def recur(layer: int, mixer: DeltaMixer | KernelDeltaMixer, inputs: DeltaInputs) -> Tensor:
            plain = mixer.plain if isinstance(mixer, KernelDeltaMixer) else mixer
            return self.delta.recur(plain, inputs, plan, self.cache.states, self.log, layer)

        return Mixing(rotations, attend, recur)


class _HybridRows:
    """What rows of chains and of trees share."""

    def __init__(self, slots: HybridSlots, *, rows: int, most: int, taps: Sequence[int]) -> None:
        self._slots, self._taps, self._most = slots, tuple(taps), most
        target, cache = slots.target, slots.cache
        self._layout = SlotLayout(cache.kv, rows, most, target.config.norm_eps)
        self._rotations = target.rotations  # kept: a larger cache gives the target another table
        self._straight = target.straight_rotations(cache.capacity)

    def pack(self, slots: Tensor, starts: Tensor, counts: Tensor) -> Packed:
        """As in `slot_rows.SlotRows`."""
        return self._layout.pack(slots, starts, counts)


class HybridSlotRows(_HybridRows):
    """As `slot_rows.DenseSlotRows`; states move on as rows are kept."""

    def __init__(self, slots: HybridSlots, *, rows: int, most: int, taps: Sequence[int]) -> None:
        """Allocate the constants; arguments as of `slot_rows.Slots.rows`."""
        super().__init__(slots, rows=rows, most=most, taps=taps)
        target = slots.target
        self._windows = delta.chain_plan(most, target.config.delta.kernel, target.device).windows
        self._path = torch.arange(most, device=target.device)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, packed: Packed) -> Forward:
        """As in `slot_rows.SlotRows`."""
        slots, plan = self._slots, chain_plan(packed, self._windows)
        ops = slots.kernels.ops(self._layout.stand(packed, self._straight))
        mixing = slots.mixing(self._rotations[packed.positions], ops, plan)
        return slots.target.run(ids, mixing, self._taps)

    @torch.inference_mode()
    def keep(self, packed: Packed, counts: Tensor) -> None:
        """As in `slot_rows.SlotRows`."""
        slots, paths = self._slots, self._path.expand(len(counts), -1)
        kept = KeptRows(packed.slots, packed.first, counts, paths)
        slots.delta.replay(slots.cache.states, slots.log, kept)


class HybridTreeSlots(HybridSlots):
    """As `slot_tree.DenseTreeSlots`."""

    trees = True

    def __init__(
        self,
        target: HybridTarget,
        slots: int,
        positions: int,
        *,
        rows: int,
        most: int,
        levels: int,
        graphs: Graphs,
    ) -> None:
        """Allocate.

        Args:
            target: as of `HybridSlots`, as are the others.
            slots: requests at a time.
            positions: of each.
            rows: of the largest program.
            most: of a request, in a step.
            levels: of the deepest tree, at most.
            graphs: record what the host decides.

        Raises:
            TargetError: it does not fit the device.
        """
        super().__init__(target, slots, positions, rows=rows, most=most, graphs=graphs)
        self.levels = levels
        head_dim = target.config.head_dim
        self.tree_kernels = slot_tree_kernels_for(target.device, target.dtype, head_dim)
        self._mover = PathMover(self.cache.kv, levels, self.tree_kernels, graphs)

    def tree_rows(self, rows: int, most: int, taps: Sequence[int]) -> HybridSlotTreeRows:
        """As in `slot_tree.TreeSlots`."""
        return HybridSlotTreeRows(self, rows=rows, most=most, taps=taps)

    def _moved(self, waiting: Mapping[int, Kept]) -> None:
        apart = {slot: (one.start, one.path) for slot, one in waiting.items() if not in_order(one.path)}
        if apart:
            self._mover(apart)


class HybridSlotTreeRows(_HybridRows):
    """As `slot_tree.DenseTreeRows`."""

    def __init__(self, slots: HybridTreeSlots, *, rows: int, most: int, taps: Sequence[int]) -> None:
        """Allocate the constants; arguments as of `slot_rows.Slots.rows`."""
        super().__init__(slots, rows=rows, most=most, taps=taps)
        self._levels, self._tree_kernels = slots.levels, slots.tree_kernels

    @torch.inference_mode()
    def __call__(self, ids: Tensor, packed: Packed, parents: Tensor) -> Forward:
        """As in `slot_tree.SlotTreeRows`."""
        target, trees = self._slots.target, lay(packed, parents, self._levels)
        stand = tree_stand(self._layout.stand(packed, self._straight), trees)
        plan = tree_plan(packed, trees, target.config.delta.kernel, self._most)
        rotations = self._rotations[stand.stand.packed.positions]
        mixing = self._slots.mixing(rotations, self._tree_kernels.ops(stand), plan)
        return target.run(ids, mixing, self._taps)


def slot_bytes(target: HybridTarget, slots: int, positions: int, rows: int, *, trees: bool = False) -> int:
    """Bytes of the cache of so many requests, its scratch slot among them, and of the log of a program.

    Args:
        target: the model.
        slots: requests at a time.
        positions: of each.
        rows: of the largest program.
        trees: a layer keeps a state for each row while it runs.
    """
    config, number = target.config, target.dtype.itemsize
    sizes, layers = config.delta, config.kinds.count("linear_attention")
    attention = config.kinds.count("full_attention") * 2 * config.kv_heads * config.head_dim
    one = sizes.values * sizes.key_dim * STATE_TYPE.itemsize  # state of a layer
    state = layers * one
    window = layers * (sizes.kernel - 1) * sizes.channels * number
    wide = sizes.keys + 2 * sizes.value_heads  # numbers of a row in the log, of the state's type
    row = layers * (wide * STATE_TYPE.itemsize + (sizes.values + sizes.channels) * number)
    kept = (slots + 1) * (positions * attention * number + state + window)
    return kept + rows * (row + one * trees)
