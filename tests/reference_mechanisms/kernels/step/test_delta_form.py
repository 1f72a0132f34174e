"""Recurrent layers of batches in the kernels of recorded steps: the bits of the recurrence."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch

from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.lanes import Lanes, Static
from reference_mechanisms.kernels.step.delta import TORCH_DELTA, DeltaKernels
from reference_mechanisms.kernels.step.delta_form import PIECE, REMEMBERED, KernelDeltaMixer, Places
from reference_mechanisms.targets.gated_delta import DeltaInputs, DeltaMixer, DeltaState
from reference_mechanisms.targets.hybrid import DeltaLayer, HybridTarget, in_kernels, load_hybrid
from tests.reference_mechanisms.targets.hybrids import write_hybrid
from tests.reference_mechanisms.targets.models import pack
from tests.reference_mechanisms.targets.test_gated_delta import path_to

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton and the kernels are loaded
pytest.importorskip("triton", reason="no Triton here")
from reference_mechanisms.kernels.step.fused_delta import DELTA  # noqa: E402
from tests.reference_mechanisms.kernels.step.test_delta import (  # noqa: E402
    SIZES,
    close,
    inputs_of,
    memory_of,
    mixer_of,
)

pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
KERNELS = {"torch": TORCH_DELTA, "triton": DELTA}
RNG = random.Random(4)  # noqa: S311 - test data
TREES = {
    "one": (-1,),
    "chain": tuple(range(-1, 9)),
    "tree": (-1, *(RNG.randrange(row) for row in range(1, 11))),
    "forest": (-1, -1, 0, 1, 1, 3),
}


def mixers(kernels: DeltaKernels) -> tuple[DeltaMixer, KernelDeltaMixer]:
    plain = mixer_of(torch.float32)
    places = Places(SIZES.kernel, DEVICE)
    return plain, KernelDeltaMixer(plain, kernels, places)


def root() -> DeltaState:
    memory = memory_of(torch.float32)
    return DeltaState(memory.memories[1], memory.windows[1])


CASES = [("torch", name) for name in TREES] + [("triton", name) for name in ("forest", "tree")]


@pytest.mark.parametrize(("name", "tree"), CASES, ids=str)
def test_rows_and_states_are_those_of_the_recurrence(name: str, tree: str) -> None:
    parents = TREES[tree]
    plain, form = mixers(KERNELS[name])
    start, rows = root(), inputs_of(torch.float32, len(parents))
    before = [part.clone() for part in start]
    wanted, theirs = plain.verify(start, rows, parents)
    found, mine = form.verify(start, rows, parents)
    assert found.shape == wanted.shape
    assert all(map(torch.equal, start, before))
    exact = name == "torch" and DEVICE.type == "cpu"
    assert torch.equal(found, wanted) or not exact
    close(found, wanted, torch.float32)
    for row in range(0, len(parents), 1 if exact else 4):
        path = path_to(parents, row)
        ours, state = mine.after(start, path), theirs.after(start, path)
        assert torch.equal(ours.window, state.window)
        assert torch.equal(ours.memory, state.memory) or not exact
        close(ours.memory, state.memory, torch.float32)


@pytest.mark.parametrize("count", [PIECE + 1, 2 * PIECE + 9])
def test_long_chains_go_piece_by_piece(count: int) -> None:
    plain, form = mixers(TORCH_DELTA)
    start, rows = root(), inputs_of(torch.float32, count)
    wanted, theirs = plain.verify(start, rows, range(-1, count - 1))
    found, mine = form.verify(start, rows, range(-1, count - 1))
    close(found, wanted, torch.float32)
    for kept in (1, PIECE, PIECE + 1, count):
        ours, state = mine.after(start, range(kept)), theirs.after(start, range(kept))
        assert torch.equal(ours.window, state.window)
        close(ours.memory, state.memory, torch.float32)


def test_in_triton_a_row_does_not_notice_the_others() -> None:
    _, form = mixers(DELTA)
    start, rows = root(), inputs_of(torch.float32, 11)
    whole, stash = form.verify(start, rows, TREES["tree"])
    row = 7
    path = path_to(TREES["tree"], row)
    chain = DeltaInputs(*(part[path] for part in rows))
    alone, own = form.verify(start, chain, range(-1, len(path) - 1))
    assert torch.equal(alone[-1], whole[row])
    assert torch.equal(own.after(start, range(len(path))).memory, stash.after(start, path).memory)


def test_plans_are_made_once_and_forgotten_in_time() -> None:
    places = Places(4, DEVICE)
    first = places.plan((-1, 0, 0), 8)
    assert places.plan((-1, 0, 0), 8) is first
    assert first.above.tolist() == [0, 1, 1, 0, 0, 0, 0, 0]
    assert first.windows[2].tolist() == [1, 2, 3, 5]
    for number in range(REMEMBERED):
        places.plan((-1, *range(number)), 64)
        places.path(range(number), 64)
    assert places.plan((-1, 0, 0), 8) is not first


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> tuple[HybridTarget, HybridTarget]:
    """As it is loaded here, and with the kernels that a GPU gives it."""
    folder = write_hybrid(tmp_path_factory.mktemp("hybrid"), "qwen3_5")
    plain, other = (load_hybrid(folder, torch.float32, torch.device("cpu")) for _ in range(2))
    places = Places(other.config.delta.kernel, other.device)
    other._layers = in_kernels(other._layers, TORCH_DELTA, places)
    return plain, other


@pytest.mark.skipif(DEVICE.type == "cuda", reason="of the CPU")
def test_a_batch_on_a_whole_target_gives_the_same_bits(
    targets: tuple[HybridTarget, HybridTarget],
) -> None:
    found: list[Any] = []
    for target in targets:
        cache = target.new_cache(2, 64)
        mine = []
        for number, rows in enumerate((pack((0, 0, range(9)), (1, 0, range(3))), None)):
            asked = rows or pack((0, 9, range(5, 8)), (1, 2, range(2, 6)))
            mine.append(target.logits(target.forward(asked, cache).hidden))
            cache.commit(0, 9 if number == 0 else 1)
            cache.commit(1, 2)
        found.append(torch.cat(mine))
    assert torch.equal(*found)
    mixings = [layer.mixing for layer in targets[1]._layers]
    deltas = [mixing.mixer for mixing in mixings if isinstance(mixing, DeltaLayer)]
    assert all(isinstance(one, KernelDeltaMixer) for one in deltas)
    assert len(deltas) == 3


@pytest.mark.skipif(DEVICE.type == "cuda", reason="of the CPU")
def test_recorded_steps_and_the_wy_form_take_the_layers_of_both(
    targets: tuple[HybridTarget, HybridTarget],
) -> None:
    ids, start = (1, 2, 3), 5
    found, dense = [], []
    for target in targets:
        lanes = Lanes(target, 64, Static(8, Graphs(target.device)))
        lanes.prefill((7, 8, 9, 10, 11), ())
        found.append(lanes.checking(()).verify(ids, start).logits.clone())
        other = target.dense_trees()
        rows = pack((0, 0, range(9)))
        dense.append(other.logits(other.forward(rows, other.new_cache(1, 64)).hidden))
    assert torch.equal(*found)
    assert torch.equal(*dense)
