"""The Triton kernels against their twin: on a GPU, or in Triton's interpreter where there is none."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reference_mechanisms.kernels.step import twin
from reference_mechanisms.targets.rope import RopeScaling, rotation_table

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton and the kernels are loaded
pytest.importorskip("triton", reason="no Triton here")
from reference_mechanisms.kernels.step import fused, fused_attention  # noqa: E402
from tests.exhaustive import slow_but  # noqa: E402

pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
# The interpreter knows no bfloat16, and is slow: there only a test or two of each kernel run in both.
BOTH = [torch.float32, torch.bfloat16 if DEVICE.type == "cuda" else torch.float16]
TYPES = BOTH if DEVICE.type == "cuda" else BOTH[:1]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
HEADS, KV, DIM, ROWS = 6, 2, 32, 5
POSITIONS = (7, 8, 9, 150, 199)
LONG = 64 * 40 if DEVICE.type == "cuda" else 64 * 5


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=TYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


def close(found: Tensor, expected: Tensor) -> None:
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    assert error < TOLERANCE[found.dtype]


@pytest.mark.parametrize("dtype", BOTH, ids=str)
@pytest.mark.parametrize("capacity", [120, LONG], ids=["one batch of chunks", "several"])
def test_attention(dtype: torch.dtype, capacity: int) -> None:
    queries = normal(ROWS, HEADS, DIM).to(DEVICE, dtype)
    place = normal(2 * KV, capacity, DIM, seed=1).to(DEVICE, dtype)
    seen = twin.Seen(
        torch.tensor([0, 0, 3, 60, 70], device=DEVICE),
        torch.tensor([1, 64, 65, 118, capacity], device=DEVICE),
    )
    close(
        fused_attention.attend(queries, place, seen),
        twin.attend(queries.double(), place.double(), seen).to(dtype),
    )


def test_what_is_not_seen_is_not_read(dtype: torch.dtype) -> None:
    queries = normal(ROWS, HEADS, DIM).to(DEVICE, dtype)
    place = normal(2 * KV, 200, DIM, seed=1).to(DEVICE, dtype)
    seen = twin.Seen(torch.full((ROWS,), 5, device=DEVICE), torch.full((ROWS,), 90, device=DEVICE))
    clean = fused_attention.attend(queries, place, seen)
    place[:, :5] = torch.nan
    place[:, 90:] = torch.nan
    assert torch.equal(fused_attention.attend(queries, place, seen), clean)


@pytest.fixture
def products_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's product rounds a row by its place in the tile, which tensor cores do not."""
    if DEVICE.type == "cpu":
        interpreter = pytest.importorskip("triton.runtime.interpreter")

        def dot(builder: object, a: Any, b: Any, d: Any, *more: object) -> Any:
            del builder, more
            rows = [row.astype(d.data.dtype) @ b.data.astype(d.data.dtype) for row in a.data]
            return interpreter.TensorHandle(np.stack(rows) + d.data, d.dtype.scalar)

        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


@pytest.mark.usefixtures("products_row_by_row")
def test_a_row_is_bitwise_the_same_alone(dtype: torch.dtype) -> None:
    queries = normal(ROWS, HEADS, DIM).to(DEVICE, dtype)
    place = normal(2 * KV, 200, DIM, seed=1).to(DEVICE, dtype)
    bounds = twin.Seen(
        torch.zeros(ROWS, dtype=torch.int64, device=DEVICE), torch.tensor(POSITIONS, device=DEVICE)
    )
    together = fused_attention.attend(queries, place, bounds)
    for row in range(ROWS):
        alone = twin.Seen(bounds.low[row : row + 1], bounds.high[row : row + 1])
        assert torch.equal(fused_attention.attend(queries[row : row + 1], place, alone)[0], together[row])


def stand_at(first: int, rows: int, cache: Tensor) -> twin.Stand:
    positions = torch.arange(first, first + rows, device=DEVICE)
    table = rotation_table(RopeScaling(10000.0), DIM, 200, cache.dtype).to(DEVICE)
    return twin.Stand(positions, twin.Seen(torch.zeros_like(positions), positions + 1), table, (cache,), 1e-5)


LAYERS = [(dtype, norms, first) for dtype in BOTH for norms in (False, True) for first in (0, 61, 64, 193)]


SOME_LAYERS = [*LAYERS[:6], LAYERS[-1]]


@pytest.mark.parametrize(
    ("dtype", "norms", "first"),
    LAYERS if DEVICE.type == "cuda" else slow_but([LAYERS[0], LAYERS[5], LAYERS[-1]], SOME_LAYERS),
    ids=str,
)
def test_attention_of_a_layer(dtype: torch.dtype, norms: bool, first: int) -> None:
    start = normal(2 * KV, 200, DIM, seed=1).to(DEVICE, dtype)
    stands = [stand_at(first, 7, start.clone()) for _ in range(2)]
    qkv = normal(7, HEADS + 2 * KV, DIM, seed=2).to(DEVICE, dtype)
    qk_norm = (1 + 0.1 * normal(HEADS + KV, DIM, seed=3)).to(DEVICE, dtype) if norms else None
    ops = fused.FusedOps(stands[0]), twin.torch_ops(stands[1])
    close(*(one.attend(0, qkv.clone(), qk_norm) for one in ops))
    caches = [stand.places[0] for stand in stands]
    close(*caches)
    caches[1][:, first : first + 7] = caches[0][:, first : first + 7]
    assert torch.equal(*caches)  # nothing else was written
    assert torch.equal(caches[0][KV:, first : first + 7], qkv[:, HEADS + KV :].transpose(0, 1))


@pytest.mark.parametrize("low", [0, 70], ids=["whole", "window"])
def test_every_way_gives_the_same_bits(dtype: torch.dtype, low: int) -> None:
    start = normal(2 * KV, 200, DIM, seed=1).to(DEVICE, dtype)
    qkv = normal(7, HEADS + 2 * KV, DIM, seed=2).to(DEVICE, dtype)
    tickets = twin.new_tickets(7, KV, DEVICE)

    def run(ways: twin.Ways) -> tuple[Tensor, Tensor]:
        stand = stand_at(125, 7, start.clone())._replace(tickets=tickets)
        stand = stand._replace(seen=stand.seen._replace(low=torch.full((7,), low, device=DEVICE)))
        return fused.FusedOps(stand, ways, ahead).attend(0, qkv, None), stand.places[0]

    ahead = [torch.zeros(3 << 20, dtype=torch.uint8, device=DEVICE)]
    expected, cache = run(twin.Ways())
    found, kept = run(twin.Ways(fetch=2))
    assert torch.equal(found, expected)
    assert torch.equal(kept, cache)
    for joins, early in ((True, False), (False, True), (True, True), (True, True)):
        found, kept = run(twin.Ways(joins=joins, early=early))
        assert torch.equal(found, expected)
        assert torch.equal(kept, cache)
        assert not tickets.any()  # as the next launch wants them


def test_too_few_tickets_are_refused(dtype: torch.dtype) -> None:
    stand = stand_at(0, 7, normal(2 * KV, 200, DIM).to(DEVICE, dtype))
    stand = stand._replace(tickets=twin.new_tickets(1, KV, DEVICE))
    qkv = normal(7, HEADS + 2 * KV, DIM).to(DEVICE, dtype)
    with pytest.raises(ValueError, match="7 rows of 2 key heads need 4 tickets, not 2"):
        fused.FusedOps(stand, twin.Ways(joins=True)).attend(0, qkv, None)


def test_rows_of_a_block_see_each_other(dtype: torch.dtype) -> None:
    start = normal(2 * KV, 200, DIM, seed=1).to(DEVICE, dtype)
    qkv = normal(9, HEADS + 2 * KV, DIM, seed=2).to(DEVICE, dtype)
    found = []
    for make in (fused.FusedOps, twin.torch_ops):
        stand = stand_at(60, 9, start.clone())
        seen = twin.Seen(torch.full((9,), 30, device=DEVICE), torch.full((9,), 69, device=DEVICE))
        found.append(make(stand._replace(seen=seen)).attend(0, qkv.clone(), None))
    close(*found)


@pytest.mark.usefixtures("products_row_by_row")
def test_a_row_is_bitwise_the_same_in_any_step(dtype: torch.dtype) -> None:
    """Six rows at once, or in steps of other sizes that find the keys before them in the cache."""
    start = normal(2 * KV, 200, DIM, seed=1).to(DEVICE, dtype)
    qkv = normal(6, HEADS + 2 * KV, DIM, seed=2).to(DEVICE, dtype)
    qk_norm = (1 + 0.1 * normal(HEADS + KV, DIM, seed=3)).to(DEVICE, dtype)
    whole = start.clone()
    together = fused.FusedOps(stand_at(60, 6, whole)).attend(0, qkv, qk_norm)
    for sizes in ((1, 1, 1, 1, 2), (2, 4)):
        cache, at = start.clone(), 0
        for size in sizes:
            rows = qkv[at : at + size]
            found = fused.FusedOps(stand_at(60 + at, size, cache)).attend(0, rows, qk_norm)
            assert torch.equal(found, together[at : at + size])
            at += size
        assert torch.equal(cache, whole)


def test_what_no_row_sees_is_not_read_by_a_layer(dtype: torch.dtype) -> None:
    start = normal(2 * KV, 200, DIM, seed=1).to(DEVICE, dtype)
    qkv = normal(2, HEADS + 2 * KV, DIM, seed=2).to(DEVICE, dtype)
    clean = fused.FusedOps(stand_at(70, 2, start.clone())).attend(0, qkv, None)
    start[:, 70:] = torch.nan
    assert torch.equal(fused.FusedOps(stand_at(70, 2, start)).attend(0, qkv, None), clean)


@pytest.mark.parametrize("dtype", BOTH, ids=str)
def test_norms_and_gate(dtype: torch.dtype) -> None:
    stand = stand_at(0, ROWS, normal(2 * KV, 200, DIM).to(DEVICE, dtype))
    ops = fused.FusedOps(stand), twin.torch_ops(stand)
    hidden, delta = normal(ROWS, 72, seed=4).to(DEVICE, dtype), normal(ROWS, 72, seed=5).to(DEVICE, dtype)
    weight = normal(72, seed=6).to(DEVICE, dtype)
    close(*(one.norm(hidden, weight) for one in ops))
    (summed, normed), (expected_sum, expected) = (one.add_norm(hidden, delta, weight) for one in ops)
    assert torch.equal(summed, expected_sum)
    close(normed, expected)
    close(*(one.gate(normal(ROWS, 2 * 700, seed=7).to(DEVICE, dtype)) for one in ops))


@pytest.mark.parametrize("dtype", BOTH, ids=str)
@pytest.mark.parametrize("norms", [False, True], ids=["plain", "norm per head"])
def test_keys_and_values_of_several_layers_are_kept(dtype: torch.dtype, norms: bool) -> None:
    positions, layers = torch.tensor(POSITIONS, device=DEVICE), 3
    table = rotation_table(RopeScaling(10000.0), DIM, 200, dtype).to(DEVICE)
    seen = twin.Seen(torch.zeros_like(positions), positions + 1)
    caches = [normal(layers, 2 * KV, 200, DIM, seed=1).to(DEVICE, dtype) for _ in range(2)]
    rows = normal(ROWS, layers, 2 * KV, DIM, seed=2).to(DEVICE, dtype)
    gains = (1 + 0.1 * normal(layers, KV, DIM, seed=3)).to(DEVICE, dtype) if norms else None
    for keep, cache in zip((fused.keep, twin.keep), caches, strict=True):
        keep(rows.clone(), gains, twin.Stand(positions, seen, table, cache.unbind(0), 1e-5))
    close(*caches)
    untouched = torch.ones(200, dtype=torch.bool, device=DEVICE)
    untouched[positions] = False
    assert torch.equal(caches[0][:, :, untouched], caches[1][:, :, untouched])
    values = caches[0][:, KV:, positions]
    assert torch.equal(values, rows[:, :, KV:].permute(1, 2, 0, 3))


def test_places_of_several_caches_are_refused(dtype: torch.dtype) -> None:
    whole = normal(4 * 2 * KV, 200, DIM).to(DEVICE, dtype)
    places = (whole[: 2 * KV], whole[2 * KV : 4 * KV], whole[6 * KV :])
    positions = torch.tensor(POSITIONS, device=DEVICE)
    stand = twin.Stand(positions, twin.Seen(positions, positions + 1), whole, places, 1e-5)
    with pytest.raises(ValueError, match="give those of one cache"):
        fused.keep(normal(ROWS, 3, 2 * KV, DIM).to(DEVICE, dtype), None, stand)
