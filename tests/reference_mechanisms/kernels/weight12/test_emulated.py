"""The streaming kernels' own text on a CPU: every way to work gives the bits of the twin."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.kernels.weight12 import compiling
from reference_mechanisms.kernels.weight12.arrange import Arranged, arrange, arrange_raw, in_turn
from reference_mechanisms.kernels.weight12.eight import EightLinear, arranged, restored, rounded
from reference_mechanisms.kernels.weight12.packing import pack
from reference_mechanisms.kernels.weight12.schedule import (
    BLOCKS,
    WAYS_BY_NAME,
    Eight,
    Split,
    Variant,
    Way,
    variant,
)
from tests.exhaustive import slow_but
from tests.reference_mechanisms.kernels.weight12.emulation.running import COMPILER, EmulationError, emulated
from tests.reference_mechanisms.weight12 import samples

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ here")
ROWS, COLUMNS = 130, 192
# Two CTAs that share three units of columns between two warps each: parts of no unit, one and two.
SPLIT = Split(rows=256, tiles=3, cluster=2, warps_k=2)


def matrix(seed: int, columns: int = COLUMNS) -> Tensor:
    bits = samples.normal((ROWS, columns), seed)
    # A group of more classes than a palette has, below 2.
    bits[5, 64:128] = samples.random_bits((64,), seed + 1) & 0xBFFF
    return torch.from_numpy(bits).view(torch.bfloat16)


def both(weight: Tensor, gated: bool = False) -> tuple[Arranged, Arranged]:
    found = arrange(pack(weight), weight.shape[1]), arrange_raw(weight)
    assert all(one.split.tiles == SPLIT.tiles for one in found)
    packed, twin = (fitted(one) for one in found)
    return dataclasses.replace(packed, gated=gated), dataclasses.replace(twin, gated=gated)


def fitted(weight: Arranged) -> Arranged:
    """Padded to the split of these tests."""
    more = SPLIT.rows // 32 - len(weight.units)
    numbers = None if weight.numbers is None else F.pad(weight.numbers, (0, 0, 0, 0, 0, more))
    units = F.pad(weight.units, (0, 0, 0, 0, 0, more))
    return dataclasses.replace(weight, split=SPLIT, units=units, numbers=numbers)


def tokens(count: int, columns: int = COLUMNS) -> Tensor:
    return torch.randn((count, columns), generator=torch.Generator().manual_seed(count)).bfloat16()


def kernel(weight: Arranged, count: int, way: Way) -> Variant:
    choice = dict.fromkeys(BLOCKS, way)
    return variant(weight.split, count, raw=weight.raw, choice=choice, gated=weight.gated, eight=weight.eight)


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int16)


def exact(x: Tensor, weight: Tensor) -> Tensor:
    return x.double() @ weight.double().t()


@pytest.mark.parametrize(
    ("name", "count"),
    slow_but(
        [("plain", 3), ("bulk-fours", 13), ("bulk-fours-warps", 29)],
        [("plain", 3), ("bulk", 13), ("fours", 29), ("bulk-fours", 13), ("bulk-fours-warps", 29)],
    ),
)
def test_every_way_gives_the_bits_of_the_twin_at_any_number_of_tokens(name: str, count: int) -> None:
    weight = matrix(1)
    packed, twin = both(weight)
    assert packed.highs is not None
    x = tokens(count)
    found = emulated(x, packed, kernel(packed, count, WAYS_BY_NAME[name]), seed=count)
    expected = emulated(x, twin, kernel(twin, count, WAYS_BY_NAME["plain"]))
    assert torch.equal(bits(found), bits(expected))
    alone = emulated(x[2:3], packed, kernel(packed, 1, WAYS_BY_NAME["plain"]))
    assert torch.equal(bits(alone[0]), bits(found[2]))
    torch.testing.assert_close(found.double(), exact(x, weight), rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "bulk-fours"])
def test_rows_that_lie_anywhere_and_columns_that_fill_no_unit(name: str) -> None:
    weight = matrix(2, columns=170)
    packed, _ = both(weight)
    wide = tokens(5, columns=400)
    for x in (wide[:, 7:177], wide[:, 8:178]):
        found = emulated(x, packed, kernel(packed, 5, WAYS_BY_NAME[name]))
        torch.testing.assert_close(found.double(), exact(x, weight), rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("name", slow_but(["bulk-fours"], ["plain", "bulk-fours"]))
def test_a_gate_in_the_same_launch_is_that_of_its_own_launch(name: str) -> None:
    weight = matrix(3)[:128]
    plain, gated = both(weight)[0], both(weight[in_turn(128)], gated=True)
    x = tokens(13)
    gate, up = emulated(x, plain, kernel(plain, 13, WAYS_BY_NAME["plain"])).chunk(2, dim=1)
    expected = F.silu(gate) * up
    found = [emulated(x, one, kernel(one, 13, WAYS_BY_NAME[name])) for one in gated]
    assert found[0].shape == (13, 64)
    assert torch.equal(bits(found[0]), bits(found[1]))
    torch.testing.assert_close(found[0], expected, rtol=2**-7, atol=0)
    assert float((found[0] == expected).float().mean()) > 0.99


@pytest.mark.parametrize(("eight", "name"), [("int8", "plain"), ("fp8", "bulk-fours")])
def test_eight_bits_are_multiplied_as_their_twin_says(eight: Eight, name: str) -> None:
    weight = torch.from_numpy(samples.normal((ROWS, COLUMNS), 6)).view(torch.bfloat16).clone()
    weight[3], weight[4, ::2] = 0, 2**-12 * weight[4, ::2]  # a row of zeros, steps next to zero
    found = rounded(weight, eight)
    laid, x = fitted(arranged(found)), tokens(13)
    assert laid.stored_bytes == 256 * 192 + 4 * ROWS
    y = emulated(x, laid, kernel(laid, 13, WAYS_BY_NAME[name]))
    torch.testing.assert_close(y, EightLinear(found)(x), rtol=2**-7, atol=1e-6)
    torch.testing.assert_close(y.double(), exact(x, restored(found)), rtol=2**-8, atol=1e-5)
    alone = emulated(x[4:5], laid, kernel(laid, 1, WAYS_BY_NAME["plain"]))
    assert torch.equal(bits(alone[0]), bits(y[4]))
    one_hot = torch.zeros((8, COLUMNS), dtype=torch.bfloat16)
    one_hot[torch.arange(8), 60 + torch.arange(8)] = 1  # every step is what its byte says
    y = emulated(one_hot, laid, kernel(laid, 8, WAYS_BY_NAME["plain"]))
    assert torch.equal(y, restored(found)[:, 60:68].t().bfloat16())


def long_parts(weight: Tensor) -> tuple[Arranged, Arranged]:
    """Packed and twin, in parts of four units, of which the first comes early."""
    split = dataclasses.replace(SPLIT, tiles=16)
    packed, twin = arrange(pack(weight), 1024), arrange_raw(weight)
    rows = [F.pad(one.units, (0, 0, 0, 0, 0, 8 - len(one.units))) for one in (packed, twin)]
    assert packed.numbers is not None
    numbers = F.pad(packed.numbers, (0, 0, 0, 0, 0, 8 - len(packed.numbers)))
    return (
        dataclasses.replace(packed, split=split, units=rows[0], numbers=numbers),
        dataclasses.replace(twin, split=split, units=rows[1]),
    )


def test_work_that_begins_with_a_quarter_of_the_columns_gives_the_same_bits() -> None:
    packed, twin = long_parts(matrix(7, columns=1024))
    wide = tokens(13, columns=1100)
    for x in (tokens(13, columns=1024), wide[:, 7:1031]):  # the other one cannot come by bulk copies
        found = emulated(x, packed, kernel(packed, 13, Way(bulk=True, early=True)), seed=3)
        assert torch.equal(bits(found), bits(emulated(x, twin, kernel(twin, 13, Way()))))


def test_the_machine_sees_a_kernel_that_does_not_wait_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    source = compiling.source
    line = "if (step == early && pass == 0 && placed) mail_wait(bells + 8 * (WK + wk), 0);"
    assert source().count(line) == 1
    monkeypatch.setattr(compiling, "source", lambda without=None: source(without=without).replace(line, ""))
    packed, _ = long_parts(matrix(7, columns=1024))
    odd = dataclasses.replace(kernel(packed, 3, Way(bulk=True, early=True)), pieces=2)
    with pytest.raises((EmulationError, AssertionError)):
        assert bool(emulated(tokens(3, columns=1024), packed, odd).isfinite().all())


def test_the_machine_sees_a_kernel_that_reads_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulation can fail: without the wait for x the sums have what is no number in them."""
    source = compiling.source

    def broken(without: str | None = None) -> str:
        return source(without).replace("mail_wait(bells + 8 * wk, 0);", "")

    monkeypatch.setattr(compiling, "source", broken)
    packed, _ = both(matrix(4))
    # one that no other test compiles
    odd = dataclasses.replace(kernel(packed, 3, Way(bulk=True)), pieces=2)
    with pytest.raises((EmulationError, AssertionError)):
        assert bool(emulated(tokens(3), packed, odd).isfinite().all())
