"""Products of four warps: the kernels' own text on a CPU, and where x lies, from the PTX manual's words."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from reference_mechanisms.kernels.weight12 import compiling
from reference_mechanisms.kernels.weight12.arrange import Arranged, arrange, arrange_raw, in_turn
from reference_mechanisms.kernels.weight12.eight import EightLinear, arranged, rounded
from reference_mechanisms.kernels.weight12.models import MODELS
from reference_mechanisms.kernels.weight12.packing import pack
from reference_mechanisms.kernels.weight12.schedule import (
    BLOCKS,
    PLAIN,
    Eight,
    Split,
    Variant,
    Way,
    settled,
    shared_bytes,
    split,
    variant,
    x_unit,
)
from tests.exhaustive import slow_but
from tests.reference_mechanisms.kernels.weight12.emulation.running import COMPILER, EmulationError, emulated
from tests.reference_mechanisms.kernels.weight12.test_emulated import bits, exact, matrix, tokens
from tests.reference_mechanisms.weight12 import samples

WGMMA, BULK = Way(wgmma=True), Way(wgmma=True, bulk=True)
ROWS = 130  # three passes of 64, the last of which has one strip where it takes two
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no g++ here")


def cut(weight: Arranged, cluster: int, warps_k: int) -> Arranged:
    """Divided so, without padding: strips behind the last one are not there."""
    group = 256 // warps_k
    found = Split(
        rows=-(-weight.rows // group) * group, tiles=weight.split.tiles, cluster=cluster, warps_k=warps_k
    )
    strips = -(-weight.rows // 32)
    numbers = None if weight.numbers is None else weight.numbers[:strips].contiguous()
    return dataclasses.replace(weight, split=found, units=weight.units[:strips].contiguous(), numbers=numbers)


def kernel(weight: Arranged, count: int, way: Way = WGMMA) -> Variant:
    choice = dict.fromkeys(BLOCKS, way)
    return variant(weight.split, count, raw=weight.raw, choice=choice, gated=weight.gated, eight=weight.eight)


EVERY = [
    (cluster, warps_k, count) for cluster in (1, 2, 4) for warps_k in (4, 2) for count in (3, 13, 29, 45)
]
FEW = [(1, 2, 29), (2, 4, 13)]


@needs_compiler
@pytest.mark.parametrize(("cluster", "warps_k", "count"), slow_but(FEW, EVERY))
def test_the_product_is_that_of_the_twin_and_right(cluster: int, warps_k: int, count: int) -> None:
    weight = matrix(1, columns=320)
    packed, twin = (cut(one, cluster, warps_k) for one in (arrange(pack(weight), 320), arrange_raw(weight)))
    assert packed.highs is not None
    x = tokens(count, 320)
    used = kernel(packed, count)
    assert used.way.wgmma
    assert 8 * used.blocks >= count
    assert used.desks == 2
    found = emulated(x, packed, used, seed=count)
    other = dataclasses.replace(kernel(twin, count, BULK), desks=1)
    assert torch.equal(bits(found), bits(emulated(x, twin, other)))
    torch.testing.assert_close(found.double(), exact(x, weight), rtol=2**-8, atol=1e-5)
    alone = emulated(x[2:3], packed, kernel(packed, 1))
    assert torch.equal(bits(alone[0]), bits(found[2]))
    # The machine adds the sixteen products of both instructions alike, so the same cuts give the same bits.
    assert torch.equal(bits(found), bits(emulated(x, packed, kernel(packed, count, PLAIN))))


@needs_compiler
def test_rows_of_x_may_lie_anywhere_and_columns_need_fill_no_unit() -> None:
    weight = matrix(2, columns=170)
    packed = cut(arrange(pack(weight), 170), 2, 4)
    wide = tokens(5, 400)
    for x in (wide[:, 7:177], wide[:, 8:178]):
        found = emulated(x, packed, kernel(packed, 5, BULK))
        torch.testing.assert_close(found.double(), exact(x, weight), rtol=2**-8, atol=1e-5)


@needs_compiler
def test_a_gate_in_the_same_launch_is_that_of_its_own_launch() -> None:
    weight = matrix(3)[:128]
    plain = cut(arrange(pack(weight), 192), 2, 4)
    gated = dataclasses.replace(cut(arrange(pack(weight[in_turn(128)]), 192), 2, 4), gated=True)
    x = tokens(13)
    gate, up = emulated(x, plain, kernel(plain, 13)).chunk(2, dim=1)
    found = emulated(x, gated, kernel(gated, 13))
    torch.testing.assert_close(found, F.silu(gate) * up, rtol=2**-7, atol=0)


@needs_compiler
@pytest.mark.parametrize("eight", slow_but(["fp8"], ["fp8", "int8"]))
def test_eight_bits_are_multiplied_as_their_twin_says(eight: Eight) -> None:
    weight = torch.from_numpy(samples.normal((ROWS, 192), 6)).view(torch.bfloat16)
    found = rounded(weight, eight)
    laid, x = cut(arranged(found), 2, 4), tokens(13)
    y = emulated(x, laid, kernel(laid, 13))
    torch.testing.assert_close(y, EightLinear(found)(x), rtol=2**-7, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("    publish_to_wgmma();\n", ""),
        ("    part_barrier(wk);", ""),
        ("                wgmma_fence();\n", ""),
        ("wgmma_wait<1>()", "wgmma_wait<2>()"),
        ("        wgmma_wait<0>();\n", ""),
        ("        between();\n", ""),
    ],
    ids=[
        "stores not published",
        "no barrier",
        "no fence",
        "operands overwritten",
        "sums read too early",
        "put down too early",
    ],
)
def test_the_machine_sees_what_is_missing(monkeypatch: pytest.MonkeyPatch, line: str, instead: str) -> None:
    source = compiling.source
    assert source().count(line) == 1
    monkeypatch.setattr(
        compiling, "source", lambda without=None: source(without=without).replace(line, instead)
    )
    weight = matrix(4, columns=1024)
    packed, x = cut(arrange(pack(weight), 1024), 1, 2), tokens(13, 1024)
    fair = kernel(packed, 13, BULK)
    odd = dataclasses.replace(fair, pieces=2, shared_bytes=fair.shared_bytes + len(line))  # in no cache
    with pytest.raises((EmulationError, AssertionError)):
        torch.testing.assert_close(emulated(x, packed, odd).double(), exact(x, weight), rtol=2**-8, atol=1e-5)


# ---- where x lies, once more, by the words of the PTX manual -------------------------------------------


def placed(unit: int, column: int, token: int, blocks: int) -> int:
    """Byte of a value of x behind the first unit of a CTA, as `place_slabs` has it."""
    lane, run, pair, odd = column // 16, column // 8 % 2, column // 2 % 4, column % 2
    slab = 2 * pair + run
    return unit * x_unit(blocks) + slab * (128 * blocks + 16) + 16 * token + 4 * lane + 2 * odd


def fragment(k: int, lane: int) -> int | None:
    """The column of a unit, less 8h + 4s, that a lane holds as column k of an instruction."""
    return 16 * lane + k % 2 + 2 * (k // 8) if k % 8 // 2 == lane else None


def taken(unit: int, h: int, s: int, k: int, token: int, blocks: int) -> int:
    """Byte that instruction (h, s) takes as column k of a token: no swizzle, columns first ("K-major").

    Core matrices are eight tokens of sixteen bytes, one behind the other; "leading" is from one to the next
    along k, "stride" from one to the next along the tokens.
    """
    slab = 128 * blocks + 16
    start, leading, stride = unit * x_unit(blocks) + (4 * s + h) * slab, 2 * slab, 128
    assert all(value % 16 == 0 and value // 16 < 1 << 14 for value in (start, leading, stride))
    return start + k // 8 * leading + token // 8 * stride + token % 8 * 16 + k % 8 * 2


@pytest.mark.parametrize("blocks", BLOCKS)
def test_instructions_take_the_columns_that_lanes_hold(blocks: int) -> None:
    seen = set()
    for h in range(2):
        for s in range(2):
            for k in range(16):
                (column,) = (
                    held + 8 * h + 4 * s for lane in range(4) if (held := fragment(k, lane)) is not None
                )
                seen.add(column)
                for token in range(8 * blocks):
                    for unit in (0, 3):
                        assert taken(unit, h, s, k, token, blocks) == placed(unit, column, token, blocks)
    assert seen == set(range(64))


def kernels() -> Iterator[tuple[Variant, Split]]:
    shapes = {shape for model in MODELS.values() for shape in model.shapes}
    for shape, bulk in itertools.product(shapes, (False, True)):
        choice = dict.fromkeys(BLOCKS, Way(wgmma=True, wide=True, bulk=bulk))
        found, ways = settled(split(*shape), *shape, choice)
        for count in (8, 16, 32, 64):
            for raw in (False, True):
                yield variant(found, count, raw=raw, choice=ways), found


def test_every_byte_of_every_shape_lies_in_the_shared_memory_of_its_cta() -> None:
    for used, found in kernels():
        slot = 2048 if used.raw else 1664
        rings = used.warps * used.pieces * slot
        counted = shared_bytes(
            found, used.blocks, used.batch, rings, raw=used.raw, way=used.way, desks=used.desks
        )
        assert counted == used.shared_bytes
        start = counted
        start -= found.x_tiles * x_unit(used.blocks)
        assert start % 16 == 0
        parts = found.cluster * found.warps_k
        for rank in range(found.cluster):
            bounds = [
                found.tiles * (rank * found.warps_k + part) // parts for part in range(found.warps_k + 1)
            ]
            units = bounds[-1] - bounds[0]
            if units == 0:
                continue
            last = [
                taken(units - 1, h, s, k, 8 * used.blocks - 1, used.blocks)
                for h in (0, 1)
                for s in (0, 1)
                for k in (7, 15)
            ]
            assert start + max(last) + 2 <= used.shared_bytes <= 227 << 10


@pytest.mark.parametrize("blocks", BLOCKS)
def test_a_warp_stores_to_all_banks_at_once(blocks: int) -> None:
    for pair in range(4):
        for token in (0, 5, 8 * blocks - 1):
            words = [placed(lane // 8, lane % 8 * 8 + 2 * pair, token, blocks) // 4 for lane in range(32)]
            assert len({word % 32 for word in words}) == 32


@pytest.mark.parametrize("blocks", BLOCKS)
def test_a_core_matrix_is_read_from_all_banks_at_once(blocks: int) -> None:
    for h, s, half in np.ndindex(2, 2, 2):
        words = [taken(1, h, s, 8 * half, token, blocks) // 4 for token in range(8)]
        assert len({word // 4 % 8 for word in words}) == 8
