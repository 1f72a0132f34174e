"""Recurrent layers of many requests: Triton against the twin, and both against steps of one request."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
import torch

from reference_mechanisms.kernels.slots import delta, trees
from reference_mechanisms.kernels.slots.delta import KeptRows, SlotDeltaKernels, SlotDeltaPlan, SlotStates
from reference_mechanisms.kernels.slots.packing import pack
from reference_mechanisms.kernels.step import delta as single
from reference_mechanisms.kernels.step.delta import DeltaKernels, DeltaLog, DeltaMemory
from reference_mechanisms.targets.gated_delta import DeltaInputs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton and the kernels are loaded
pytest.importorskip("triton", reason="no Triton here")
from reference_mechanisms.kernels.slots import fused_delta  # noqa: E402
from reference_mechanisms.kernels.step import fused_delta as single_fused  # noqa: E402
from tests.reference_mechanisms.kernels.step.test_delta import (  # noqa: E402
    LAYERS,
    SIZES,
    TYPES,
    close,
    inputs_of,
    mixer_of,
    normal,
)

pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
SLOTS, ROWS, MOST, CAPACITY, LAYER = 4, 12, 5, 32, 1
# slot, rows of each seat: one with less than a convolution's window, two without rows; then padding
SEATS = ((2, 5), (4, 0), (0, 1), (3, 3), (4, 0))
WAYS: dict[str, tuple[SlotDeltaKernels, DeltaKernels]] = {
    "torch": (delta.TORCH_SLOT_DELTA, single.TORCH_DELTA),
    "triton": (fused_delta.SLOT_DELTA, single_fused.DELTA),
}


def plan_of(seats: Sequence[tuple[int, int]], rows: int, most: int = MOST) -> SlotDeltaPlan:
    slots, counts = (torch.tensor(one, device=DEVICE) for one in zip(*seats, strict=True))
    packed = pack(slots, slots + 7, counts, torch.arange(rows, device=DEVICE), SLOTS, CAPACITY)
    return delta.chain_plan(packed, single.chain_plan(most, SIZES.kernel, DEVICE).windows)


def kept_of(plan: SlotDeltaPlan, counts: Sequence[int]) -> KeptRows:
    told, path = torch.tensor(counts, device=DEVICE), torch.arange(MOST, device=DEVICE)
    return KeptRows(plan.packed.slots, plan.packed.first, told, path.expand(len(counts), -1))


def states_of(dtype: torch.dtype) -> SlotStates:
    found = delta.new_states(SIZES, LAYERS, SLOTS + 1, dtype, DEVICE)
    found.memories.copy_(normal(*found.memories.shape, seed=20))
    found.windows.copy_(normal(*found.windows.shape, seed=21))
    return found


def log_of(dtype: torch.dtype, rows: int) -> DeltaLog:
    return single.new_log(SIZES, LAYERS, rows, dtype, DEVICE)


def part(inputs: DeltaInputs, rows: slice) -> DeltaInputs:
    return DeltaInputs(*(one[rows] for one in inputs))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_kernel_computes_what_the_twin_does(dtype: torch.dtype) -> None:
    mixer, inputs, states, plan = (
        mixer_of(dtype),
        inputs_of(dtype, ROWS),
        states_of(dtype),
        plan_of(SEATS, ROWS),
    )
    logs = log_of(dtype, ROWS + 3), log_of(dtype, ROWS + 3)
    outs = [
        way.recur(mixer, inputs, plan, states, log, LAYER)
        for (way, _), log in zip(WAYS.values(), logs, strict=True)
    ]
    real = int(plan.packed.counts.sum())
    assert real == 9
    close(outs[1][:real], outs[0][:real], dtype)
    for one, other in zip(*logs, strict=True):
        close(one[LAYER, :real], other[LAYER, :real], dtype)
        assert not one[1 - LAYER].any()  # of another layer
    for state, before in zip(states, states_of(dtype), strict=True):
        assert torch.equal(state, before)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_kept_rows_are_replayed_in_every_layer(dtype: torch.dtype) -> None:
    plan, log = plan_of(SEATS, ROWS), log_of(dtype, ROWS + 3)
    for number, one in enumerate(log):
        one.copy_(0.3 * normal(*one.shape, seed=30 + number))
    kept = kept_of(plan, [4, 0, 1, 0, 0])
    found = states_of(dtype), states_of(dtype)
    for (way, _), states in zip(WAYS.values(), found, strict=True):
        way.replay(states, log, kept)
    close(found[1].memories, found[0].memories, torch.float32)
    assert torch.equal(found[1].windows, found[0].windows)
    before = states_of(dtype)
    for slot in range(SLOTS + 1):
        for state, old in zip(found[1], before, strict=True):
            same = [torch.equal(state[layer, slot], old[layer, slot]) for layer in range(LAYERS)]
            assert same == [slot not in {0, 2}] * LAYERS
    for layer in range(LAYERS):
        rows = [*before.windows[layer, 2], *log.raw[layer, :4]]
        assert torch.equal(found[1].windows[layer, 2], torch.stack(rows[-3:]))


@pytest.mark.parametrize("way", WAYS)
def test_a_row_is_bitwise_that_of_a_step_of_one(way: str) -> None:
    """Beside others or alone, and so is the state that the kept rows leave."""
    dtype = torch.float32
    many, one = WAYS[way]
    mixer, inputs, states, plan = (
        mixer_of(dtype),
        inputs_of(dtype, ROWS),
        states_of(dtype),
        plan_of(SEATS, ROWS),
    )
    log = log_of(dtype, ROWS)
    found = many.recur(mixer, inputs, plan, states, log, LAYER)
    kept = [count and max(1, count - 1) for _, count in SEATS]
    first = 0
    after = states_of(dtype)
    many.replay(after, log, kept_of(plan, kept))
    for seat, (slot, count) in enumerate(SEATS):
        memory = DeltaMemory(*(state[:, slot].clone() for state in states_of(dtype)))
        for row in range(count):
            alone, its_log = part(inputs, slice(first + row, first + row + 1)), log_of(dtype, 1)
            chain = single.chain_plan(1, SIZES.kernel, DEVICE)
            out = one.recur(mixer, alone, chain, memory, its_log, LAYER)
            assert torch.equal(out[0], found[first + row])
            zero = torch.tensor([0], device=DEVICE)
            one.replay(memory, its_log, zero, zero + 1)
            if row + 1 == kept[seat]:
                assert torch.equal(memory.memories[LAYER], after.memories[LAYER, slot])
                assert torch.equal(memory.windows[LAYER], after.windows[LAYER, slot])
        first += count
    other = plan_of(((3, 3), (2, 5)), 8, most=8)
    mine = DeltaInputs(*(torch.cat((one[6:9], one[:5])) for one in inputs))
    again = many.recur(mixer, mine, other, states, log_of(dtype, 8), LAYER)
    assert torch.equal(again, torch.cat((found[6:9], found[:5])))


@pytest.mark.parametrize("way", WAYS)
def test_another_slot_and_what_lies_behind_change_nothing(way: str) -> None:
    dtype = torch.float32
    mixer, inputs, states = mixer_of(dtype), inputs_of(dtype, ROWS), states_of(dtype)
    plan, many = plan_of(SEATS, ROWS), WAYS[way][0]
    clean = many.recur(mixer, inputs, plan, states, log_of(dtype, ROWS), LAYER)
    for state in states:
        state[:, 1] = torch.nan  # of a request that takes no part
        state[1 - LAYER] = torch.nan
    others = DeltaInputs(*(one.clone() for one in inputs))
    for one in others:
        one[6:] = 9.0
    found = many.recur(mixer, others, plan, states, log_of(dtype, ROWS), LAYER)
    assert torch.equal(found[:6], clean[:6])
    assert not torch.equal(found[6:9], clean[6:9])
    assert torch.isfinite(found).all()


# Parents of the rows of each seat.
TREES: tuple[tuple[int, list[int]], ...] = (
    (2, [-1, 0, 0, 1, 3]),
    (4, []),
    (0, [-1]),
    (3, [-1, 0, 0]),
    (4, []),
)


def tree_of(most: int = MOST) -> SlotDeltaPlan:
    """The seats of `SEATS`, their rows trees."""
    packed = plan_of(SEATS, ROWS).packed
    told = [parent for _, parents in TREES for parent in parents]
    parents = torch.tensor([*told, *[0] * (ROWS - len(told))], device=DEVICE)
    return delta.tree_plan(packed, trees.lay(packed, parents, 3), SIZES.kernel, most)


def path_of(parents: Sequence[int], row: int) -> list[int]:
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_kernel_of_trees_computes_what_the_twin_does(dtype: torch.dtype) -> None:
    mixer, inputs, states, plan = mixer_of(dtype), inputs_of(dtype, ROWS), states_of(dtype), tree_of()
    logs = log_of(dtype, ROWS), log_of(dtype, ROWS)
    outs = [
        way.recur(mixer, inputs, plan, states, log, LAYER)
        for (way, _), log in zip(WAYS.values(), logs, strict=True)
    ]
    close(outs[1][:9], outs[0][:9], dtype)
    for one, other in zip(*logs, strict=True):
        close(one[LAYER, :9], other[LAYER, :9], dtype)
    for state, before in zip(states, states_of(dtype), strict=True):
        assert torch.equal(state, before)


@pytest.mark.parametrize("way", WAYS)
def test_a_row_of_a_tree_is_bitwise_that_of_its_chain_and_so_is_what_its_path_leaves(way: str) -> None:
    dtype = torch.float32
    many, one = WAYS[way]
    mixer, inputs, states, plan = mixer_of(dtype), inputs_of(dtype, ROWS), states_of(dtype), tree_of()
    log = log_of(dtype, ROWS)
    found = many.recur(mixer, inputs, plan, states, log, LAYER)
    first = 0
    for seat, (slot, parents) in enumerate(TREES):
        for row in range(len(parents)):
            path = path_of(parents, row)
            memory = DeltaMemory(*(state[:, slot].clone() for state in states_of(dtype)))
            rows, its_log = [first + place for place in path], log_of(dtype, len(path))
            chain = single.chain_plan(len(path), SIZES.kernel, DEVICE)
            mine = DeltaInputs(*(part[rows] for part in inputs))
            out = one.recur(mixer, mine, chain, memory, its_log, LAYER)
            assert torch.equal(out[-1], found[first + row])
            index = torch.arange(len(path), device=DEVICE)
            one.replay(memory, its_log, index, index[-1:] + 1)
            after = states_of(dtype)
            paths = torch.zeros((len(SEATS), MOST), dtype=torch.int64, device=DEVICE)
            paths[seat, : len(path)] = torch.tensor(path)
            counts = torch.zeros(len(SEATS), dtype=torch.int64, device=DEVICE)
            counts[seat] = len(path)
            many.replay(after, log, KeptRows(plan.packed.slots, plan.packed.first, counts, paths))
            assert torch.equal(memory.memories[LAYER], after.memories[LAYER, slot])
            assert torch.equal(memory.windows[LAYER], after.windows[LAYER, slot])
        first += len(parents)


def test_the_windows_of_trees_are_those_of_their_paths() -> None:
    plan = tree_of()
    assert plan.above[:9].tolist() == [0, 1, 1, 2, 4, 0, 0, 1, 1]
    assert plan.windows[:5].tolist() == [[0, 1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 5], [2, 3, 4, 6], [3, 4, 6, 7]]
    assert plan.windows[5].tolist() == [0, 1, 2, 3]
