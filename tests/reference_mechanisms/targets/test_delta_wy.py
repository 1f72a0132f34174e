"""The WY form against the recurrence: equal up to rounding, and no row of another branch in it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.delta_wy import (
    DenseDeltaMixer,
    DenseStash,
    Plan,
    Plans,
    Spelled,
    by_levels,
    plan_of,
    solve,
)
from reference_mechanisms.targets.gated_delta import DeltaInputs, DeltaState
from reference_mechanisms.targets.hybrid import HybridTarget, load_hybrid
from tests.reference_mechanisms.targets.hybrids import states, write_hybrid
from tests.reference_mechanisms.targets.models import CPU, random_ids
from tests.reference_mechanisms.targets.test_gated_delta import SIZES, TREES, Layer, path_to

DECAYS = {"mild": 0.1, "middling": 2.0, "strong": 40.0}  # largest -g of a row


def shapes(rows: int) -> dict[str, tuple[int, ...]]:
    rng = random.Random(rows)  # noqa: S311 - test data
    return {
        "chain": tuple(range(-1, rows - 1)),
        "random": tuple(rng.randrange(-1, row) for row in range(rows)),
        "deep spine": tuple(row - 1 if row <= rows // 2 else rng.randrange(row) for row in range(rows)),
        "star": (-1, *([0] * (rows - 1))),
    }


class Problem:
    """Root state and rows in float64; keys of unit length that look alike, as trained ones do."""

    def __init__(self, rows: int, decay: float, seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        self.heads, self.repeats, self.dim = 2, 2, 16

        def numbers(*shape: int) -> Tensor:
            return torch.randn(shape, generator=made, dtype=torch.float64)

        wide = (self.heads, self.repeats)
        common = numbers(self.heads, 1, self.dim)
        self.key, self.query = (
            torch.nn.functional.normalize(numbers(self.heads, rows, self.dim) + common, dim=-1)
            for _ in range(2)
        )
        self.value = numbers(*wide, rows, self.dim)
        self.beta = torch.rand((*wide, rows), generator=made, dtype=torch.float64)
        self.log_decay = -decay * torch.rand((*wide, rows), generator=made, dtype=torch.float64)
        self.memory = numbers(*wide, self.dim, self.dim)

    def truth(self, parents: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """What one row after another gives: reads, and the state behind each row."""
        found: list[Tensor] = []
        reads = []
        for row, parent in enumerate(parents):
            state = self.memory if parent < 0 else found[parent]
            state = state * self.log_decay[..., row].exp()[..., None, None]
            key = self.key[:, None, row, :, None]
            delta = (self.value[..., row, :] - (state * key).sum(-2)) * self.beta[..., row, None]
            found.append(state + key * delta[..., None, :])
            reads.append((found[-1] * self.query[:, None, row, :, None]).sum(-2))
        return torch.stack(reads, 2), found

    def solved(self, plan: Plan, dtype: torch.dtype) -> tuple[Tensor, DenseStash]:
        memory, *parts = (
            part.to(dtype)
            for part in (self.memory, self.query, self.key, self.value, self.beta, self.log_decay)
        )
        found = solve(memory, Spelled(*parts), plan.ancestors, by_levels(plan.levels))
        raw = torch.zeros(self.key.shape[1], 1, dtype=dtype)
        return found.read, DenseStash(self.key.to(dtype), found.delta, self.log_decay.to(dtype), raw)


def worst(found: Tensor, truth: Tensor) -> float:
    assert bool(torch.isfinite(found).all())
    return float((found.double() - truth).abs().max() / truth.abs().max())


def errors(rows: int, parents: Sequence[int], decay: float, dtype: torch.dtype) -> tuple[float, float]:
    """Of reads and of the states behind some rows, in parts of the largest true number."""
    problem = Problem(rows, decay, seed=rows)
    truth, behind = problem.truth(parents)
    read, stash = problem.solved(plan_of(parents, 1, CPU, dtype), dtype)
    root = DeltaState(problem.memory.to(dtype), torch.zeros(0, 1, dtype=dtype))
    paths = [path_to(parents, row) for row in range(rows - 1, -1, -7)]
    found = [worst(stash.after(root, path).memory, behind[path[-1]]) for path in paths]
    return worst(read, truth), max(found)


@pytest.mark.parametrize("decay", DECAYS.values(), ids=DECAYS)
@pytest.mark.parametrize("rows", [1, 16, 64])
def test_it_is_the_recurrence_up_to_rounding(rows: int, decay: float) -> None:
    for parents in shapes(rows).values():
        assert max(errors(rows, parents, decay, torch.float64)) < 5e-15
        assert max(errors(rows, parents, decay, torch.float32)) < 1e-6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("decay", DECAYS.values(), ids=DECAYS)
def test_a_gpu_rounds_no_worse(decay: float) -> None:
    for parents in shapes(64).values():
        problem, gpu = Problem(64, decay, seed=64), torch.device("cuda")
        truth, _ = problem.truth(parents)
        for name, part in list(vars(problem).items()):
            if isinstance(part, Tensor):
                setattr(problem, name, part.to(gpu))
        read, _ = problem.solved(plan_of(parents, 1, gpu, torch.float32), torch.float32)
        assert worst(read.cpu(), truth) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_layer_gives_what_its_recurrence_gives(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    layer = Layer(SIZES[SIZES.index(sizes)], dtype)  # type: ignore[arg-type]
    form = DenseDeltaMixer(layer.mixer, Plans())
    limit = 3e-6 if dtype == torch.float32 else 2e-2
    for parents in TREES.values():
        rows = layer.rows(len(parents))
        before = [part.clone() for part in layer.root]
        wanted, theirs = layer.mixer.verify(layer.root, rows, parents)
        found, mine = form.verify(layer.root, rows, parents)
        assert all(map(torch.equal, layer.root, before))
        assert found.dtype == dtype
        assert worst(found, wanted.double()) < limit
        for row in range(len(parents)):
            path = path_to(parents, row)
            ours, state = mine.after(layer.root, path), theirs.after(layer.root, path)
            assert torch.equal(ours.window, state.window)
            assert worst(ours.memory, state.memory.double()) < 3e-6


def test_long_chains_go_piece_by_piece() -> None:
    layer = Layer(SIZES[0], torch.float32)
    rows, chain = layer.rows(150), range(-1, 149)
    wanted, theirs = layer.mixer.verify(layer.root, rows, chain)
    found, mine = DenseDeltaMixer(layer.mixer, Plans()).verify(layer.root, rows, chain)
    assert worst(found, wanted.double()) < 3e-6
    for kept in (1, 64, 150):
        ours, state = mine.after(layer.root, range(kept)), theirs.after(layer.root, range(kept))
        assert torch.equal(ours.window, state.window)
        assert worst(ours.memory, state.memory.double()) < 3e-6


def test_one_wrong_bit_of_the_mask_is_seen() -> None:
    """The test of the tests: a row that sees one of another branch is off by far more than rounding."""
    parents = shapes(16)["random"]
    problem = Problem(16, DECAYS["mild"], seed=1)
    plan = plan_of(parents, 1, CPU, torch.float64)
    truth, _ = problem.truth(parents)
    flips = 0
    for row in range(16):
        for column in range(row):
            if plan.ancestors[row, column]:
                continue
            wrong = plan._replace(ancestors=plan.ancestors.clone())
            wrong.ancestors[row, column] = 1.0
            read, _ = problem.solved(wrong, torch.float64)
            assert worst(read[..., row, :], truth[..., row, :]) > 1e-3
            flips += 1
    assert flips > 50


def test_a_row_changes_its_descendants_alone() -> None:
    layer, parents = Layer(SIZES[0], torch.float32), TREES["breadth first"]
    form, rows = DenseDeltaMixer(layer.mixer, Plans()), layer.rows(len(parents))
    before, _ = form.verify(layer.root, rows, parents)
    for changed in range(len(parents)):
        other = DeltaInputs(*(part.clone() for part in rows))
        other.raw[changed] += 1.0
        after, _ = form.verify(layer.root, other, parents)
        for row in range(len(parents)):
            assert torch.equal(before[row], after[row]) == (changed not in path_to(parents, row))


def test_it_is_not_bit_exact() -> None:
    """Why an arm with it says so."""
    layer = Layer(SIZES[2], torch.float32)
    rows, chain = layer.rows(24), range(-1, 23)
    form = DenseDeltaMixer(layer.mixer, Plans())
    whole, _ = form.verify(layer.root, rows, chain)
    assert not torch.equal(whole, layer.mixer.verify(layer.root, rows, chain)[0])
    first, stash = form.verify(layer.root, DeltaInputs(*(part[:11] for part in rows)), range(-1, 10))
    state = stash.after(layer.root, range(11))
    rest, _ = form.verify(state, DeltaInputs(*(part[11:] for part in rows)), range(-1, 12))
    assert not torch.equal(torch.cat((first, rest)), whole)


def test_products_of_fewer_bits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    with pytest.raises(TargetError, match=r"leave torch\.set_float32_matmul_precision at"):
        DenseDeltaMixer(Layer(SIZES[0], torch.float32).mixer, Plans())


@pytest.fixture(scope="module", params=["qwen3_next", "qwen3_5"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HybridTarget:
    return load_hybrid(write_hybrid(tmp_path_factory.mktemp("hybrid"), request.param), torch.float32, CPU)


def test_a_whole_target_stays_at_rounding_over_many_rounds(target: HybridTarget) -> None:
    rng = random.Random(2)  # noqa: S311 - test data
    both = (target, target.dense_trees())
    caches = [one.new_cache(1, 256) for one in both]
    prompt = random_ids(9, seed=5)
    parents: tuple[int, ...] = tuple(range(-1, 8))
    ids: Sequence[int] = prompt
    path = list(range(9))
    for _ in range(5):
        start = caches[0].length(0)
        depths = [len(path_to(parents, row)) - 1 for row in range(len(ids))]
        rows = Rows(ids, [start + depth for depth in depths], (Segment(0, start, len(ids)),), parents)
        exact, dense = (
            one.logits(one.forward(rows, cache).hidden) for one, cache in zip(both, caches, strict=True)
        )
        assert worst(dense, exact.double()) < 5e-6
        for cache in caches:
            cache.commit_path(0, path)
        for ours, theirs in zip(states(caches[1], 3), states(caches[0], 3), strict=True):
            assert worst(ours, theirs.double()) < 5e-6
        parents = (-1, *(rng.randrange(row) for row in range(1, 12)))
        ids = random_ids(12, seed=rng.randrange(100))
        path = path_to(parents, rng.randrange(12))


def test_masks_are_made_once_for_all_layers(target: HybridTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(*arguments: object) -> Plan:
        made.append(arguments[0])
        return plan_of(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("reference_mechanisms.targets.delta_wy.plan_of", counted)
    dense = target.dense_trees()
    cache = dense.new_cache(1, 64)
    rows = Rows(random_ids(5), (0, 1, 1, 2, 2), (Segment(0, 0, 5),), (-1, 0, 0, 1, 2))
    dense.forward(rows, cache)
    assert made == [(-1, 0, 0, 1, 2)]
