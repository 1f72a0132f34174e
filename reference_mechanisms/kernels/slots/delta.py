"""Gated DeltaNet for chains and trees of many requests, in plain torch: rows from their own slot's state.

As `kernels.step.delta`, whose log and operations these are, for rows that are packed: where a seat's rows
stand, and how many of them are kept, are numbers on the device. So a row's bits are those of a step of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.kernels.slots.packing import Packed
from reference_mechanisms.kernels.slots.trees import SlotTrees
from reference_mechanisms.kernels.step import delta
from reference_mechanisms.kernels.step.delta import DeltaLog, DeltaMemory
from reference_mechanisms.targets.gated_delta import (
    STATE_TYPE,
    DeltaInputs,
    DeltaMixer,
    DeltaSizes,
    DeltaState,
)


class SlotStates(NamedTuple):
    """The committed states of all slots, of every recurrent layer; `kernels.step.delta.DeltaMemory`."""

    memories: Tensor  # [layers, slots, key_heads, repeats, key_dim, value_dim], float32
    windows: Tensor  # [layers, slots, kernel - 1, channels]: raw inputs, the oldest first


class SlotDeltaPlan(NamedTuple):
    """Where the rows of a forward stand; shared by its layers. All int64."""

    packed: Packed
    above: Tensor  # [rows]: 0 for the committed state, else 1 + the row of the seat in front
    windows: Tensor  # [rows, kernel]: places in the slot's window and the seat's rows behind it, oldest first
    most: int  # rows of a seat, at most
    chain: bool  # each row stands behind the one before


class KeptRows(NamedTuple):
    """What stays of the rows of a forward; int64. A seat that keeps nothing may name any slot."""

    slots: Tensor  # [seats]
    first: Tensor  # [seats]: first row
    counts: Tensor  # [seats]: of the first rows of its path
    paths: Tensor  # [seats, most]: rows of the seat, each the parent of the next


class SlotDeltaKernels(NamedTuple):
    """One way to compute the recurrent layers of a step."""

    recur: Callable[[DeltaMixer, DeltaInputs, SlotDeltaPlan, SlotStates, DeltaLog, int], Tensor]
    replay: Callable[[SlotStates, DeltaLog, KeptRows], None]


def new_states(
    sizes: DeltaSizes, layers: int, slots: int, dtype: torch.dtype, device: torch.device
) -> SlotStates:
    """States of slots without tokens."""
    heads = (layers, slots, sizes.key_heads, sizes.value_heads // sizes.key_heads)
    return SlotStates(
        torch.zeros((*heads, sizes.key_dim, sizes.value_dim), dtype=STATE_TYPE, device=device),
        torch.zeros((layers, slots, sizes.kernel - 1, sizes.channels), dtype=dtype, device=device),
    )


def chain_plan(packed: Packed, table: Tensor) -> SlotDeltaPlan:
    """Of rows one behind the other.

    Args:
        packed: the rows.
        table: windows of `kernels.step.delta.chain_plan`, of the most rows of a seat.
    """
    return SlotDeltaPlan(packed, packed.inside, table[packed.inside], len(table), chain=True)


def tree_plan(packed: Packed, trees: SlotTrees, kernel: int, most: int) -> SlotDeltaPlan:
    """Of the rows of trees; `packed` as they lie."""
    up = torch.arange(kernel - 1, -1, -1, device=packed.inside.device)  # steps towards the anchor, and beyond
    at = trees.depths[:, None] - up
    found = trees.paths.gather(1, at.clamp_min(0)) + (kernel - 1)
    windows = torch.where(at >= 0, found, kernel - 1 + at)
    parents = trees.paths.gather(1, (trees.depths[:, None] - 1).clamp_min(0))[:, 0]
    above = torch.where(trees.depths > 0, parents + 1, 0)
    return SlotDeltaPlan(packed, above, windows, most, chain=False)


def recur(
    mixer: DeltaMixer,
    inputs: DeltaInputs,
    plan: SlotDeltaPlan,
    states: SlotStates,
    log: DeltaLog,
    layer: int,
) -> Tensor:
    """Run the rows of one layer: the first of a seat from its slot's state, each other from its parent's.

    Args:
        mixer: of the layer.
        inputs: of the rows.
        plan: of the forward.
        states: committed; left as they are.
        log: takes what the rows write; of as many rows or more.
        layer: counted among the recurrent ones.

    Returns:
        [rows, value_heads x value_dim].
    """
    packed, outputs = plan.packed, []
    back = states.windows.shape[2]
    root = states.memories[layer]
    found = root.new_zeros((len(inputs.raw), *root.shape[1:]))  # behind each row
    for row in range(len(inputs.raw)):
        slot, above = packed.row_slots[row : row + 1], plan.above[row : row + 1]
        first = row - packed.inside[row : row + 1]  # of the seat
        parent = found.index_select(0, (first + above - 1).clamp_min(0))[0]
        memory = torch.where(above == 0, root.index_select(0, slot)[0], parent)
        places = plan.windows[row, :-1]
        joined = torch.cat((states.windows[layer].index_select(0, slot)[0], inputs.raw))
        window = joined.index_select(0, torch.where(places < back, places, places + first))
        one = DeltaInputs(*(part[row] for part in inputs))
        output, write, after = mixer.step(DeltaState(memory, window), one)
        outputs.append(output)
        found[row] = after.memory
        for kept, part in zip(log[:-1], write, strict=True):
            kept[layer, row] = part
    log.raw[layer, : len(inputs.raw)].copy_(inputs.raw)
    return torch.stack(outputs)


def replay(states: SlotStates, log: DeltaLog, kept: KeptRows) -> None:
    """Bring the kept rows of each seat into the state of its slot.

    Args:
        states: that the rows were run from; written to.
        log: of those rows.
        kept: of those rows; a slot stands once among those that keep any.
    """
    rows = log.raw.shape[1]
    for seat in range(len(kept.slots)):
        slot = kept.slots[seat : seat + 1]
        memory = DeltaMemory(*(part.index_select(1, slot)[:, 0] for part in states))
        path = (kept.first[seat] + kept.paths[seat]).clamp(max=rows - 1)
        delta.replay(memory, log, path, kept.counts[seat : seat + 1])
        for state, part in zip(states, memory, strict=True):
            state.index_copy_(1, slot, part[:, None])


TORCH_SLOT_DELTA = SlotDeltaKernels(recur, replay)
