"""Trees of many requests: Triton against the twin, and every row against the row of its own chain."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from reference_mechanisms.kernels.slots import trees, twin
from reference_mechanisms.kernels.slots.packing import Packed
from reference_mechanisms.kernels.slots.trees import Moved, SlotTreeKernels, SlotTreeStand

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton and the kernels are loaded
pytest.importorskip("triton", reason="no Triton here")
from reference_mechanisms.kernels.slots import fused, fused_trees  # noqa: E402
from tests.reference_mechanisms.kernels.slots.test_fused import (  # noqa: E402
    CAPACITY,
    DIM,
    HEADS,
    KV,
    SLOTS,
    cache_of,
    counted_loops,
    packed_of,
    stand_of,
)
from tests.reference_mechanisms.kernels.step.test_fused import (  # noqa: E402
    TYPES,
    close,
    normal,
    products_row_by_row,
)

__all__ = ["counted_loops", "products_row_by_row"]
pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
ROWS, LEVELS = 20, 5
# slot, position of the anchor, rows of each seat: over the ends of blocks and splits, one empty
SEATS = ((2, 253, 9), (0, 0, 6), (3, 0, 0), (1, 510, 3))
WAYS: dict[str, SlotTreeKernels] = {"torch": trees.TORCH_SLOT_TREES, "triton": fused_trees.SLOT_TREES}


def parents_of(seed: int) -> list[list[int]]:
    """A random tree for each seat; the first row is its anchor."""
    rng = random.Random(seed)  # noqa: S311 - test data
    found = []
    for _, _, count in SEATS:
        parents, depths = [-1] * min(count, 1), [0]
        for row in range(1, count):
            parents.append(rng.choice([one for one in range(row) if depths[one] < LEVELS]))
            depths.append(depths[parents[-1]] + 1)
        found.append(parents)
    return found


def path_of(parents: Sequence[int], row: int) -> list[int]:
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def laid(packed: Packed, parents: Sequence[Sequence[int]]) -> trees.SlotTrees:
    told = [one for seat in parents for one in seat]
    padding = [5] * (len(packed.seats) - len(told))  # any number
    return trees.lay(packed, torch.tensor([*told, *padding], device=DEVICE), LEVELS)


def stood(place: Tensor, seed: int) -> tuple[SlotTreeStand, list[list[int]]]:
    packed, parents = packed_of(SEATS, ROWS), parents_of(seed)
    return trees.tree_stand(stand_of(packed, place), laid(packed, parents)), parents


def test_rows_are_laid_out_by_their_parents() -> None:
    packed = packed_of(((2, 7, 5), (0, 3, 2)), 9)
    found = laid(packed, [[-1, 0, 0, 1, 3], [-1, 0]])
    assert found.depths.tolist() == [0, 1, 1, 2, 3, 0, 1, 0, 0]
    assert found.cells.tolist()[:7] == [7, 8, 9, 10, 11, 3, 4]
    assert found.starts.tolist()[:7] == [7] * 5 + [3] * 2
    assert found.paths.tolist() == [
        [0, 0, 0, 0, 0, 0],
        [0, 1, 1, 1, 1, 1],
        [0, 2, 2, 2, 2, 2],
        [0, 1, 3, 3, 3, 3],
        [0, 1, 3, 4, 4, 4],
        [0, 0, 0, 0, 0, 0],
        [0, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("norms", [False, True], ids=["plain", "norm per head"])
def test_the_kernel_computes_what_the_twin_does(dtype: torch.dtype, norms: bool) -> None:
    start = cache_of(dtype)
    caches = [start.clone(), start.clone()]
    qkv = normal(ROWS, HEADS + 2 * KV, DIM, seed=2).to(DEVICE, dtype)
    qk_norm = (1 + 0.1 * normal(HEADS + KV, DIM, seed=3)).to(DEVICE, dtype) if norms else None
    found = [
        way.ops(stood(cache, 1)[0]).attend(0, qkv.clone(), qk_norm)
        for way, cache in zip(WAYS.values(), caches, strict=True)
    ]
    real = sum(count for *_, count in SEATS)
    close(found[1][:real], found[0][:real])
    assert not found[1][real:].any()  # padding is a number
    close(*caches)
    for slot, first, rows in SEATS:
        for cache in caches:
            cache[slot, :, first : first + rows] = start[slot, :, first : first + rows]
    for cache in caches:
        assert torch.equal(cache[:SLOTS], start[:SLOTS])  # nothing else was written


@pytest.mark.usefixtures("products_row_by_row")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WAYS)
def test_a_row_is_bitwise_the_row_of_its_chain(name: str, seed: int) -> None:
    """So are its key and value, and it notices none but its ancestors."""
    dtype = torch.float32
    start = cache_of(dtype)
    qkv = normal(ROWS, HEADS + 2 * KV, DIM, seed=2).to(DEVICE, dtype)
    whole = start.clone()
    stand, parents = stood(whole, seed)
    found = WAYS[name].ops(stand).attend(0, qkv.clone(), None)
    chains = fused.SlotOps if name == "triton" else twin.torch_ops
    first = 0
    for (slot, position, count), mine in zip(SEATS, parents, strict=True):
        for row in range(count):
            path, cache = path_of(mine, row), start.clone()
            packed = packed_of(((slot, position, len(path)),), len(path))
            alone = stand_of(packed, cache)._replace(most=len(path))
            rows = qkv[[first + one for one in path]]
            out = chains(alone).attend(0, rows.clone(), None)
            assert torch.equal(out[-1], found[first + row]), (slot, row)
            end = position + len(path) - 1
            assert torch.equal(cache[slot, :, end], whole[slot, :, position + row])
        first += count


@pytest.mark.parametrize("name", WAYS)
def test_accepted_paths_come_together(name: str) -> None:
    data = normal(2, SLOTS + 1, 2 * KV, CAPACITY, DIM, seed=1).to(DEVICE)
    before, places = data.clone(), data.unbind(0)
    straight = list(range(LEVELS + 1))
    paths = torch.tensor([[0, 2, 5, 3, 4, 5], straight, [0, 1, 4, 7, 8, 5], straight], device=DEVICE)
    slots, starts = torch.tensor([2, 3, 0, 3], device=DEVICE), torch.tensor([254, 0, 7, 0], device=DEVICE)
    WAYS[name].move(places, Moved(slots, starts, paths))
    for slot, start, path in ((2, 254, (2, 5)), (0, 7, (1, 4, 7, 8))):
        for place, row in enumerate(path, 1):
            assert torch.equal(data[:, slot, :, start + place], before[:, slot, :, start + row])
            data[:, slot, :, start + place] = before[:, slot, :, start + place]
    assert torch.equal(data, before)  # nothing else has moved


def test_paths_longer_than_a_split_are_refused() -> None:
    stand, _ = stood(cache_of(torch.float32), 1)
    long = stand.trees._replace(paths=torch.zeros((ROWS, 300), dtype=torch.int64, device=DEVICE))
    qkv = normal(ROWS, HEADS + 2 * KV, DIM, seed=2).to(DEVICE)
    with pytest.raises(ValueError, match="paths of 300 rows"):
        fused_trees.SlotTreeOps(stand._replace(trees=long)).attend(0, qkv, None)
