from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from reference_mechanisms.targets.delta_memory import NumberBytes, stash_bytes, verify_memory
from reference_mechanisms.targets.gated_delta import (
    DeltaInputs,
    DeltaMixer,
    DeltaSizes,
    DeltaState,
    DeltaWeights,
    check_parents,
    empty_state,
    replay,
)
from tests.reference_mechanisms.targets.models import CPU

MIB = 1 << 20
SIZES = [DeltaSizes(2, 4, 6, 10, 4), DeltaSizes(1, 3, 8, 5, 2), DeltaSizes(2, 2, 16, 16, 4)]
TREES = {
    "a chain": (-1, 0, 1, 2, 3, 4),
    "a star": (-1, 0, 0, 0, 0),
    "roots only": (-1, -1, -1),
    "a comb": (-1, 0, 0, 1, 1, 3, 3, 5),
    "breadth first": (-1, 0, 0, 0, 1, 1, 2, 4, 6, 7),
    "longer than the window, twice": (-1, 0, 1, 2, 3, 0, 5, 6, 7, 8),
}


class Layer:
    """Random weights, a root behind a few tokens, random rows."""

    def __init__(self, sizes: DeltaSizes, dtype: torch.dtype, seed: int = 0) -> None:
        self.sizes, self.dtype, self.made = sizes, dtype, torch.Generator().manual_seed(seed)
        convolution = self.numbers(sizes.kernel, sizes.channels).float()
        heads = self.numbers(sizes.value_heads)
        norm = self.numbers(sizes.value_dim)
        self.mixer = DeltaMixer(sizes, DeltaWeights(convolution, heads, heads.flip(0), norm), 1e-6)
        first = self.rows(7)
        start = empty_state(sizes, dtype, CPU)
        _, stash = self.mixer.verify(start, first, range(-1, 6))
        self.root = replay(start, stash, range(7))

    def numbers(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.made).to(self.dtype)

    def rows(self, count: int) -> DeltaInputs:
        sizes = self.sizes
        return DeltaInputs(
            raw=self.numbers(count, sizes.channels),
            z=self.numbers(count, sizes.value_heads, sizes.value_dim),
            b=self.numbers(count, sizes.value_heads),
            a=self.numbers(count, sizes.value_heads),
        )

    def stepped(self, rows: DeltaInputs, path: Sequence[int]) -> tuple[list[Tensor], DeltaState]:
        """Rows of a path as steps of their own, each committed before the next."""
        state, outputs = self.root, []
        for row in path:
            one = DeltaInputs(*(part[row : row + 1].clone() for part in rows))
            output, stash = self.mixer.verify(state, one, (-1,))
            state = replay(state, stash, (0,))
            outputs.append(output[0])
        return outputs, state


@pytest.fixture(params=[(s, d) for s in SIZES for d in (torch.float32, torch.bfloat16)], ids=str)
def layer(request: pytest.FixtureRequest) -> Layer:
    return Layer(*request.param)


def path_to(parents: Sequence[int], row: int) -> list[int]:
    found = [row]
    while parents[found[-1]] >= 0:
        found.append(parents[found[-1]])
    return found[::-1]


@pytest.mark.parametrize("parents", TREES.values(), ids=TREES)
def test_every_path_of_a_tree_is_bitwise_its_own_steps(layer: Layer, parents: tuple[int, ...]) -> None:
    rows = layer.rows(len(parents))
    before = [part.clone() for part in layer.root]
    outputs, stash = layer.mixer.verify(layer.root, rows, parents)
    assert all(map(torch.equal, layer.root, before))
    for row in range(len(parents)):
        path = path_to(parents, row)
        wanted, state = layer.stepped(rows, path)
        assert torch.equal(outputs[row], wanted[-1]), f"row {row}"
        assert all(map(torch.equal, replay(layer.root, stash, path), state)), f"row {row}"
    assert all(map(torch.equal, layer.root, before))


def test_random_trees_too() -> None:
    layer, rng = Layer(SIZES[0], torch.float32), random.Random(3)  # noqa: S311 - test data
    for _ in range(30):
        parents = [rng.randrange(-1, row) for row in range(rng.randint(1, 24))]
        rows = layer.rows(len(parents))
        outputs, stash = layer.mixer.verify(layer.root, rows, parents)
        path = path_to(parents, rng.randrange(len(parents)))
        wanted, state = layer.stepped(rows, path)
        assert torch.equal(outputs[path[-1]], wanted[-1])
        assert all(map(torch.equal, replay(layer.root, stash, path), state))


def test_a_row_changes_its_descendants_only(layer: Layer) -> None:
    parents = TREES["breadth first"]
    rows = layer.rows(len(parents))
    before, _ = layer.mixer.verify(layer.root, rows, parents)
    for changed in range(len(parents)):
        other = DeltaInputs(*(part.clone() for part in rows))
        other.raw[changed] += 1.0
        after, _ = layer.mixer.verify(layer.root, other, parents)
        for row in range(len(parents)):
            assert torch.equal(before[row], after[row]) == (changed not in path_to(parents, row))


def test_the_recurrence_is_the_one_of_the_paper() -> None:
    """In float64, written out head by head with matrices: S (I - beta k k^T) e^g + beta v k^T."""
    layer = Layer(SIZES[0], torch.float32)
    sizes, rows = layer.sizes, layer.rows(5)
    _, stash = layer.mixer.verify(layer.root, rows, range(-1, 4))
    found = replay(layer.root, stash, range(5)).memory
    writes = stash.writes
    for head in range(sizes.value_heads):
        key_head, place = divmod(head, sizes.value_heads // sizes.key_heads)
        memory = layer.root.memory[key_head, place].double().T  # value_dim x key_dim, as in the paper
        for row in range(5):
            key, value = writes.key[row, key_head].double(), writes.value[row, key_head, place].double()
            beta, decay = (
                part[row, key_head, place].double() for part in (writes.beta, writes.log_decay.exp())
            )
            forget = torch.eye(sizes.key_dim, dtype=torch.float64) - beta * torch.outer(key, key)
            memory = decay * memory @ forget + beta * torch.outer(value, key)
        torch.testing.assert_close(found[key_head, place].double(), memory.T, rtol=1e-5, atol=1e-6)


def test_a_window_is_the_last_raw_inputs_of_the_path() -> None:
    layer = Layer(SIZES[0], torch.float32)
    rows = layer.rows(6)
    _, stash = layer.mixer.verify(layer.root, rows, (-1, 0, 0, 2, 3, 4))
    assert torch.equal(replay(layer.root, stash, (0, 2, 3, 4)).window, rows.raw[[2, 3, 4]])
    short = replay(layer.root, stash, (0, 1)).window
    assert torch.equal(short, torch.cat((layer.root.window[2:], rows.raw[:2])))
    assert torch.equal(replay(layer.root, stash, ()).window, layer.root.window)


def test_memory_stays_in_check_over_many_tokens() -> None:
    layer, state = Layer(SIZES[0], torch.float32), empty_state(SIZES[0], torch.float32, CPU)
    for _ in range(20):
        _, stash = layer.mixer.verify(state, layer.rows(20), range(-1, 19))
        state = replay(state, stash, range(20))
    assert state.memory.isfinite().all()
    assert 0 < float(state.memory.abs().max()) < 100


@pytest.mark.parametrize(
    ("parents", "rows", "message"),
    [
        ((-1, 1), 2, "row 1 has parent 1"),
        ((0,), 1, "row 0 has parent 0"),
        ((-1, -2), 2, "row 1 has parent -2"),
        ((-1, 0, 5), 3, "row 2 has parent 5"),
        ((-1,), 2, "1 parents for 2 rows"),
    ],
)
def test_parents_that_make_no_tree_are_refused(parents: tuple[int, ...], rows: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_parents(parents, rows)
    layer = Layer(SIZES[0], torch.float32)
    with pytest.raises(ValueError, match=message):
        layer.mixer.verify(layer.root, layer.rows(rows), parents)


# memory


@pytest.mark.parametrize(
    ("number", "writes", "raw"),
    [(NumberBytes(2, 4, 2), 21, 15), (NumberBytes(4, 2, 2), 15, 15), (NumberBytes(4, 4, 4), 24, 30)],
    ids=["published", "a bfloat16 target", "a float32 target"],
)
def test_a_stash_is_a_hundredth_of_snapshots_at_the_sizes_of_published_models(
    number: NumberBytes, writes: int, raw: int
) -> None:
    wide = DeltaSizes(key_heads=16, value_heads=48, key_dim=128, value_dim=128, kernel=4)
    found = verify_memory(wide, layers=48, rows=16, number=number)
    assert found.snapshots == 2304 * MIB
    assert (round(found.writes / MIB), round(found.raw / MIB)) == (writes, raw)
    assert found.ratio == pytest.approx(2304 / writes, rel=0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_arithmetic_is_what_is_really_kept(dtype: torch.dtype) -> None:
    layer = Layer(SIZES[0], dtype)
    _, stash = layer.mixer.verify(layer.root, layer.rows(5), range(-1, 4))
    number = NumberBytes(key=4, value=dtype.itemsize, raw=dtype.itemsize)
    found = verify_memory(layer.sizes, layers=1, rows=5, number=number)
    assert stash_bytes(stash) == (found.writes, found.raw)
    assert found.snapshots == 5 * layer.root.memory.nbytes
