"""The Triton kernels of many slots against their twin: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_mechanisms.kernels.slots import twin
from reference_mechanisms.kernels.slots.packing import Packed, SlotStand, chains, pack
from reference_mechanisms.kernels.step.twin import Seen
from reference_mechanisms.targets.rope import RopeScaling, rotation_table

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton and the kernels are loaded
pytest.importorskip("triton", reason="no Triton here")
from reference_mechanisms.kernels.slots import fused  # noqa: E402
from tests.reference_mechanisms.kernels.step.test_fused import (  # noqa: E402
    BOTH,
    TYPES,
    close,
    normal,
    products_row_by_row,
)

__all__ = ["products_row_by_row"]
pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
HEADS, KV, DIM, CAPACITY, SLOTS, ROWS = 8, 1, 32, 600, 3, 18
# slot, first position, rows of each seat; over the ends of blocks and splits, one empty, one over a tile
SEATS = ((2, 252, 5), (0, 0, 1), (3, 0, 0), (1, 520, 10))


@pytest.fixture(autouse=True)
def counted_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter cannot turn its numbers, arrays of one, into the ends of a loop with newer numpy."""
    if DEVICE.type == "cpu":
        interpreter = pytest.importorskip("triton.runtime.interpreter")
        patch = interpreter._patch_lang_tensor

        def patched(tensor: Any, scope: Any) -> None:
            patch(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda one: one.handle.data.item())

        monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


@pytest.fixture(params=TYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


def packed_of(seats: tuple[tuple[int, int, int], ...], rows: int) -> Packed:
    slots, starts, counts = (torch.tensor(one, device=DEVICE) for one in zip(*seats, strict=True))
    return pack(slots, starts, counts, torch.arange(rows, device=DEVICE), SLOTS, CAPACITY)


def stand_of(packed: Packed, *caches: Tensor) -> SlotStand:
    table = rotation_table(RopeScaling(10000.0), DIM, CAPACITY, caches[0].dtype).to(DEVICE)
    return SlotStand(packed, chains(packed), table, caches, 1e-5, ROWS, 256)


def cache_of(dtype: torch.dtype) -> Tensor:
    return normal(SLOTS + 1, 2 * KV, CAPACITY, DIM, seed=1).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", BOTH, ids=str)
@pytest.mark.parametrize("norms", [False, True], ids=["plain", "norm per head"])
def test_attention_of_a_layer(dtype: torch.dtype, norms: bool) -> None:
    packed, start = packed_of(SEATS, ROWS), cache_of(dtype)
    stands = [stand_of(packed, start.clone()) for _ in range(2)]
    qkv = normal(ROWS, HEADS + 2 * KV, DIM, seed=2).to(DEVICE, dtype)
    qk_norm = (1 + 0.1 * normal(HEADS + KV, DIM, seed=3)).to(DEVICE, dtype) if norms else None
    ops = fused.SlotOps(stands[0]), twin.torch_ops(stands[1])
    found = [one.attend(0, qkv.clone(), qk_norm) for one in ops]
    real = int(packed.counts.sum())
    close(found[0][:real], found[1][:real])
    assert real < ROWS
    assert not found[0][real:].any()  # padding is a number
    caches = [stand.places[0] for stand in stands]
    close(*caches)
    for slot, first, rows in SEATS:
        mine = slice(first, first + rows)
        assert not torch.equal(caches[0][slot, :, mine], start[slot, :, mine]) or not rows
        caches[0][slot, :, mine] = caches[1][slot, :, mine] = start[slot, :, mine]
    assert torch.equal(caches[0][:SLOTS], start[:SLOTS])  # nothing else was written
    assert torch.equal(caches[1][:SLOTS], start[:SLOTS])


def test_rows_may_see_less_and_more_than_a_chain(dtype: torch.dtype) -> None:
    packed, place = packed_of(SEATS, ROWS), cache_of(dtype)
    queries = normal(ROWS, HEADS, DIM, seed=2).to(DEVICE, dtype)
    low = (packed.positions - 70).clamp_min(0)
    high = torch.minimum(packed.positions + 20, torch.tensor(CAPACITY, device=DEVICE))
    stand = stand_of(packed, place)._replace(seen=Seen(low, high))
    real = int(packed.counts.sum())
    expected = twin.SlotAttention(stand._replace(places=(place.double(),)), torch.float64)(
        0, queries.double()
    )
    close(fused.attend(queries, place, stand)[:real], expected.to(dtype)[:real])


def test_what_is_not_seen_is_not_read(dtype: torch.dtype) -> None:
    packed, place = packed_of(((1, 70, 3),), 8), cache_of(dtype)
    queries = normal(8, HEADS, DIM, seed=2).to(DEVICE, dtype)
    clean = fused.attend(queries, place, stand_of(packed, place))
    place[:1] = place[2:] = torch.nan
    place[1, :, 73:] = torch.nan
    assert torch.equal(fused.attend(queries, place, stand_of(packed, place)), clean)


@pytest.mark.usefixtures("products_row_by_row")
def test_a_row_is_bitwise_the_same_in_any_step(dtype: torch.dtype) -> None:
    """All rows at once beside others, or in steps of other sizes and seats."""
    start = cache_of(dtype)
    qkv = normal(10, HEADS + 2 * KV, DIM, seed=2).to(DEVICE, dtype)
    other = normal(2, HEADS + 2 * KV, DIM, seed=4).to(DEVICE, dtype)
    qk_norm = (1 + 0.1 * normal(HEADS + KV, DIM, seed=3)).to(DEVICE, dtype)
    whole = start.clone()
    packed = packed_of(((0, 9, 2), (1, 252, 10), (3, 0, 0)), 16)
    rows = torch.cat((other, qkv, other, other))
    together = fused.SlotOps(stand_of(packed, whole)).attend(0, rows.contiguous(), qk_norm)[2:12]
    for sizes in ((1,) * 10, (3, 7)):
        cache, at = start.clone(), 0
        for size in sizes:
            stand = stand_of(packed_of(((1, 252 + at, size),), size), cache)
            found = fused.SlotOps(stand._replace(most=size)).attend(0, qkv[at : at + size].clone(), qk_norm)
            assert torch.equal(found, together[at : at + size])
            at += size
        assert torch.equal(cache[1], whole[1])


@pytest.mark.parametrize("dtype", BOTH, ids=str)
@pytest.mark.parametrize("norms", [False, True], ids=["plain", "norm per head"])
def test_keeping_several_layers(dtype: torch.dtype, norms: bool) -> None:
    packed = packed_of(SEATS, ROWS)
    data = normal(2, SLOTS + 1, 2 * KV, CAPACITY, DIM, seed=1).to(DEVICE, dtype)
    caches = [data.clone(), data.clone()]
    rows = normal(ROWS, 2, 2 * KV, DIM, seed=2).to(DEVICE, dtype)
    weights = (1 + 0.1 * normal(2, KV, DIM, seed=3)).to(DEVICE, dtype) if norms else None
    for keep, cache in zip((fused.keep, twin.keep), caches, strict=True):
        keep(rows.clone(), weights, stand_of(packed, *cache.unbind(0)))
    close(*caches)
    assert not torch.equal(caches[0], data)
