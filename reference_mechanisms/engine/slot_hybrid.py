"""Many requests on a hybrid target, in steps of fixed shape.

The attention layers are those of `slot_rows.py`, with the rotation done before. The recurrent ones run from
the committed state of each row's slot, and leave a log; of it is replayed what was accepted: by the device
inside the step, or before the next program where the host decides. A step without drafts takes the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.graphs import Graphs, hold_fit
from reference_mechanisms.engine.slot_rows import SlotLayout
from reference_mechanisms.engine.staging import send
from reference_mechanisms.engine.target import Forward
from reference_mechanisms.kernels.slots.choice import slot_delta_kernels_for, slot_kernels_for
from reference_mechanisms.kernels.slots.delta import Kept, SlotDeltaPlan, new_states
from reference_mechanisms.kernels.slots.packing import Packed
from reference_mechanisms.kernels.step.delta import chain_plan, new_log
from reference_mechanisms.kernels.step.delta_form import KernelDeltaMixer
from reference_mechanisms.targets.gated_delta import STATE_TYPE, DeltaInputs, DeltaMixer
from reference_mechanisms.targets.hybrid import HybridTarget, Mixing


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
        self._waiting: dict[int, tuple[int, int]] = {}  # of a slot: first row, and how many are kept

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
        """Keep rows: by the host's word if it was told of them, else the device has kept them."""
        self.kv.commit(slot, kept)
        first = self._ran.pop(slot, None)
        if first is not None and kept:
            self._waiting[slot] = first, kept

    def commit_path(self, slot: int, path: Sequence[int]) -> None:
        """As `commit`, of rows that are a chain.

        Raises:
            ValueError: they are another path.
        """
        if list(path) != list(range(len(path))):
            raise ValueError(f"slot {slot}: rows {list(path)} are no chain")
        self.commit(slot, len(path))

    def take_waiting(self) -> dict[int, tuple[int, int]]:
        """What the host has committed since it was asked last: of each slot its first row, and how many."""
        found, self._waiting = self._waiting, {}
        return found


class HybridSlots:
    """As `slot_rows.DenseSlots`."""

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
        hold_fit(
            slot_bytes(target, slots, positions, rows), device, f"keys, values and states of {slots} requests"
        )
        self.target: HybridTarget = target
        self.cache = SlotHybridCache(target, slots + 1, positions)
        self.kernels = slot_kernels_for(device, dtype, config.head_dim)
        self.delta = slot_delta_kernels_for(device, dtype)
        self.log = new_log(config.delta, layers, rows, dtype, device)
        self._most, self._scratch = most, slots
        # Slot, first row and kept rows of each seat, as the host has it.
        self._kept = torch.zeros((3, slots), dtype=torch.int64, device=device)
        self._index = torch.arange(most, device=device)
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
        seats = [(slot, first, kept) for slot, (first, kept) in waiting.items()]
        seats += [(self._scratch, 0, 0)] * (self._scratch - len(seats))
        send(self._kept, [list(part) for part in zip(*seats, strict=True)])
        self._replay()

    @torch.inference_mode()
    def _replaying(self) -> None:
        slots, first, counts = self._kept
        self.delta.replay(self.cache.states, self.log, Kept(slots, first, counts, self._index))


class HybridSlotRows:
    """As `slot_rows.DenseSlotRows`; states move on as rows are kept."""

    def __init__(self, slots: HybridSlots, *, rows: int, most: int, taps: Sequence[int]) -> None:
        """Allocate the constants; arguments as of `slot_rows.Slots.rows`."""
        self._slots, self._taps = slots, tuple(taps)
        target, cache = slots.target, slots.cache
        config = target.config
        self._layout = SlotLayout(cache.kv, rows, most, config.norm_eps)
        self._rotations = target.rotations  # kept: a larger cache gives the target another table
        self._straight = target.straight_rotations(cache.capacity)
        self._windows = chain_plan(most, config.delta.kernel, target.device).windows
        self._index = torch.arange(most, device=target.device)

    def pack(self, slots: Tensor, starts: Tensor, counts: Tensor) -> Packed:
        """As in `slot_rows.SlotRows`."""
        return self._layout.pack(slots, starts, counts)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, packed: Packed) -> Forward:
        """As in `slot_rows.SlotRows`."""
        slots, plan = self._slots, SlotDeltaPlan(packed, self._windows)
        ops = slots.kernels.ops(self._layout.stand(packed, self._straight))

        def attend(layer: int, qkv: Tensor) -> Tensor:
            return ops.attend(layer, qkv, None)

        def recur(layer: int, mixer: DeltaMixer | KernelDeltaMixer, inputs: DeltaInputs) -> Tensor:
            plain = mixer.plain if isinstance(mixer, KernelDeltaMixer) else mixer
            return slots.delta.recur(plain, inputs, plan, slots.cache.states, slots.log, layer)

        mixing = Mixing(self._rotations[packed.positions], attend, recur)
        return slots.target.run(ids, mixing, self._taps)

    @torch.inference_mode()
    def keep(self, packed: Packed, counts: Tensor) -> None:
        """As in `slot_rows.SlotRows`."""
        kept = Kept(packed.slots, packed.first, counts, self._index)
        self._slots.delta.replay(self._slots.cache.states, self._slots.log, kept)


def slot_bytes(target: HybridTarget, slots: int, positions: int, rows: int) -> int:
    """Bytes of the cache of so many requests, its scratch slot among them, and of the log of a program.

    Args:
        target: the model.
        slots: requests at a time.
        positions: of each.
        rows: of the largest program.
    """
    config, number = target.config, target.dtype.itemsize
    sizes, layers = config.delta, config.kinds.count("linear_attention")
    attention = config.kinds.count("full_attention") * 2 * config.kv_heads * config.head_dim
    state = layers * sizes.value_heads * sizes.key_dim * sizes.value_dim * STATE_TYPE.itemsize
    window = layers * (sizes.kernel - 1) * sizes.channels * number
    wide = sizes.keys + 2 * sizes.value_heads  # numbers of a row in the log, of the state's type
    row = layers * (wide * STATE_TYPE.itemsize + (sizes.values + sizes.channels) * number)
    return (slots + 1) * (positions * attention * number + state + window) + rows * row
