"""Recurrent layers in steps of fixed shape: Triton against the twin, and both against rows of their own."""

from __future__ import annotations

import os
import random

import pytest
import torch

from reference_mechanisms.kernels.step import delta, dense_delta, trees
from reference_mechanisms.kernels.step.delta import DeltaLog, DeltaMemory, DeltaPlan
from reference_mechanisms.targets.gated_delta import DeltaInputs, DeltaMixer, DeltaSizes, DeltaWeights
from tests.reference_mechanisms.kernels.step.test_trees import LEVELS, path_of, random_parents, turn_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton and the kernels are loaded
pytest.importorskip("triton", reason="no Triton here")
from reference_mechanisms.kernels.step import fused_delta, fused_dense_delta  # noqa: E402

pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
SIZES = DeltaSizes(key_heads=2, value_heads=4, key_dim=6, value_dim=10, kernel=4)
LAYERS, ROWS = 2, 10
TYPES = [torch.float32, torch.bfloat16 if DEVICE.type == "cuda" else torch.float16]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def mixer_of(dtype: torch.dtype) -> DeltaMixer:
    weights = DeltaWeights(
        convolution=normal(SIZES.kernel, SIZES.channels, seed=1),
        log_a=(0.3 * normal(SIZES.value_heads, seed=2)).to(dtype),
        dt_bias=(0.3 * normal(SIZES.value_heads, seed=3)).to(dtype),
        norm=(1 + 0.3 * normal(SIZES.value_dim, seed=4)).to(dtype),
    )
    return DeltaMixer(SIZES, weights, 1e-6)


def inputs_of(dtype: torch.dtype, rows: int, seed: int = 7) -> DeltaInputs:
    return DeltaInputs(
        normal(rows, SIZES.channels, seed=seed).to(dtype),
        normal(rows, SIZES.value_heads, SIZES.value_dim, seed=seed + 1).to(dtype),
        normal(rows, SIZES.value_heads, seed=seed + 2).to(dtype),
        normal(rows, SIZES.value_heads, seed=seed + 3).to(dtype),
    )


def memory_of(dtype: torch.dtype) -> DeltaMemory:
    found = delta.new_memory(SIZES, LAYERS, dtype, DEVICE)
    found.memories.copy_(normal(*found.memories.shape, seed=20))
    found.windows.copy_(normal(*found.windows.shape, seed=21))
    return found


def log_of(dtype: torch.dtype, rows: int = ROWS) -> DeltaLog:
    return delta.new_log(SIZES, LAYERS, rows, dtype, DEVICE)


def tree(seed: int) -> tuple[list[int], DeltaPlan]:
    parents = random_parents(random.Random(seed), ROWS, ROWS - 2)  # noqa: S311 - test data
    turn = turn_of(parents, [0] * ROWS)
    trees.lay(turn)
    return parents, delta.tree_plan(turn.depths, turn.paths, turn.parents, SIZES.kernel, bits=True)


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize(("dtype", "seed"), list(zip(TYPES, (0, 1), strict=True)), ids=str)
def test_the_kernel_computes_what_the_twin_does(dtype: torch.dtype, seed: int) -> None:
    mixer, inputs, memory = mixer_of(dtype), inputs_of(dtype, ROWS), memory_of(dtype)
    _, plan = tree(seed)
    logs = log_of(dtype), log_of(dtype)
    before = memory.memories.clone()
    outs = [
        way(mixer, inputs, plan, memory, log, 1)
        for way, log in zip((fused_delta.recur, delta.recur), logs, strict=True)
    ]
    close(outs[0], outs[1], dtype)
    for one, other in zip(*logs, strict=True):
        close(one[1], other[1], dtype)
        assert not one[0].any()  # of another layer
    assert torch.equal(logs[0].raw, logs[1].raw)
    assert torch.equal(memory.memories, before)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kept", [0, 1, 2, 5])
def test_kept_rows_are_replayed_in_every_layer(dtype: torch.dtype, kept: int) -> None:
    log = log_of(dtype)
    for number, part in enumerate(log):
        part.copy_(0.3 * normal(*part.shape, seed=30 + number))
    path = torch.tensor([0, 2, 3, 7, 9, 9], device=DEVICE)
    memories = memory_of(dtype), memory_of(dtype)
    count = torch.tensor([kept], device=DEVICE)
    for way, memory in zip((fused_delta.replay, delta.replay), memories, strict=True):
        way(memory, log, path, count)
    close(memories[0].memories, memories[1].memories, torch.float32)
    assert torch.equal(memories[0].windows, memories[1].windows)
    rows = [*memory_of(dtype).windows[1], *log.raw[1][path[:kept]]]
    assert torch.equal(memories[0].windows[1], torch.stack(rows[-3:]))
    assert torch.equal(memories[0].memories, memory_of(dtype).memories) == (kept == 0)


@pytest.mark.parametrize("way", [delta.recur, fused_delta.recur], ids=["torch", "triton"])
def test_every_row_is_bitwise_the_row_of_its_chain(way: object) -> None:
    """Alone, among others, in a tree: and so are the states that a path leaves."""
    assert callable(way)
    replay = delta.replay if way is delta.recur else fused_delta.replay
    mixer, inputs = mixer_of(torch.float32), inputs_of(torch.float32, ROWS)
    memory, log = memory_of(torch.float32), log_of(torch.float32)
    parents, plan = tree(3)
    found = way(mixer, inputs, plan, memory, log, 0)
    for row in (1, 4, ROWS - 3):
        path = path_of(parents, row)
        stepped = memory_of(torch.float32)
        for place in path:
            one, alone = DeltaInputs(*(part[place : place + 1] for part in inputs)), log_of(torch.float32, 1)
            plan_of_one = delta.chain_plan(1, SIZES.kernel, DEVICE)
            out = way(mixer, one, plan_of_one, stepped, alone, 0)
            assert torch.equal(out[0], found[place])
            zero = torch.tensor([0], device=DEVICE)
            replay(stepped, alone, zero, zero + 1)
        whole = memory_of(torch.float32)
        rows = torch.tensor([*path, *[row] * (LEVELS + 1 - len(path))], device=DEVICE)
        replay(whole, log, rows, torch.tensor([len(path)], device=DEVICE))
        assert torch.equal(whole.memories[0], stepped.memories[0])
        assert torch.equal(whole.windows[0], stepped.windows[0])


def by_chains(inputs: DeltaInputs, memory: DeltaMemory, parents: list[int], row: int) -> torch.Tensor:
    """A row of the recurrence at the end of its own chain, in float64."""
    wide = DeltaMemory(*(part.double() for part in memory))
    layer, path = mixer_of(torch.float32), path_of(parents, row)
    chain = DeltaInputs(*(part[path].double() for part in inputs))
    log = DeltaLog(*(part.double() for part in log_of(torch.float32, len(path))))
    return delta.recur(layer, chain, delta.chain_plan(len(path), SIZES.kernel, DEVICE), wide, log, 1)[-1]


DENSE = {"torch": dense_delta, "triton": fused_dense_delta}


@pytest.mark.parametrize(("way", "seed"), list(zip(DENSE.values(), (0, 1), strict=True)), ids=DENSE)
def test_the_wy_form_is_the_recurrence_up_to_rounding(way: object, seed: int) -> None:
    layer, inputs, memory = mixer_of(torch.float32), inputs_of(torch.float32, ROWS), memory_of(torch.float32)
    parents, plan = tree(seed)
    log, theirs, before = log_of(torch.float32), log_of(torch.float32), memory.memories.clone()
    found = way.recur(layer, inputs, plan, memory, log, 1)  # type: ignore[attr-defined]
    for row in range(ROWS - 2):
        close(found[row], by_chains(inputs, memory, parents, row), torch.float32)
    delta.recur(layer, inputs, plan, memory, theirs, 1)
    for mine, other in zip(log, theirs, strict=True):
        close(mine[1], other[1], torch.float32)
        assert not mine[0].any()
    assert torch.equal(memory.memories, before)
    assert way.replay in (delta.replay, fused_delta.replay)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("dtype", "rows"), [(TYPES[1], 1), (TYPES[0], 24), (TYPES[1], 10)], ids=str)
def test_the_wy_kernel_computes_what_its_twin_does(dtype: torch.dtype, rows: int) -> None:
    layer, inputs, memory = mixer_of(dtype), inputs_of(dtype, rows), memory_of(dtype)
    plan, logs = (
        delta.chain_plan(rows, SIZES.kernel, DEVICE, bits=True),
        (log_of(dtype, rows), log_of(dtype, rows)),
    )
    outs = [
        way.recur(layer, inputs, plan, memory, log, 0)
        for way, log in zip((fused_dense_delta, dense_delta), logs, strict=True)
    ]
    close(outs[0], outs[1], dtype)
    for one, other in zip(*logs, strict=True):
        close(one[0], other[0], dtype)
    assert torch.equal(logs[0].raw, logs[1].raw)


@pytest.mark.parametrize("way", DENSE.values(), ids=DENSE)
def test_in_the_wy_form_a_row_changes_its_descendants_alone(way: object) -> None:
    """And so does a bit of the mask: one that is wrong moves its row by more than rounding."""
    layer, inputs, memory = mixer_of(torch.float32), inputs_of(torch.float32, ROWS), memory_of(torch.float32)
    parents, plan = tree(1)

    def ran(rows: DeltaInputs, where: DeltaPlan) -> torch.Tensor:
        log = log_of(torch.float32)
        found: torch.Tensor = way.recur(layer, rows, where, memory, log, 0)  # type: ignore[attr-defined]
        return found

    before = ran(inputs, plan)
    for changed in range(0, ROWS - 2, 3):
        other = DeltaInputs(*(part.clone() for part in inputs))
        other.a[changed] += 1.0
        after = ran(other, plan)
        for row in range(ROWS - 2):
            assert torch.equal(before[row], after[row]) == (changed not in path_of(parents, row)), row
    stranger = next(
        (row, other)
        for row in range(1, ROWS - 2)
        for other in range(1, row)
        if other not in path_of(parents, row)
    )
    seen = plan.seen.clone()
    seen[stranger[0]] |= 1 << stranger[1]
    moved = (ran(inputs, plan._replace(seen=seen))[stranger[0]] - before[stranger[0]]).abs().max()
    assert moved > 1e-3 * before.abs().max()


def test_a_word_has_64_bits() -> None:
    plan = delta.chain_plan(64, SIZES.kernel, DEVICE, bits=True)
    lower = torch.ones(64, 64, device=DEVICE).tril()
    assert torch.equal(dense_delta.ancestors_of(plan.seen, torch.float32), lower)
    layer, inputs, memory = mixer_of(torch.float32), inputs_of(torch.float32, 65), memory_of(torch.float32)
    more, log = delta.chain_plan(65, SIZES.kernel, DEVICE, bits=True), log_of(torch.float32, 65)
    for way in DENSE.values():
        with pytest.raises(ValueError, match="65 rows"):
            way.recur(layer, inputs, more, memory, log, 0)
