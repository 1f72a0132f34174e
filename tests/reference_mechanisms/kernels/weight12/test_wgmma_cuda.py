"""Every way on a device; whether wgmma sums as mma.sync does is told, not demanded."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.arrange import Arranged, arrange, arrange_raw, in_turn
from reference_mechanisms.kernels.weight12.compiling import has_wgmma
from reference_mechanisms.kernels.weight12.driver import architecture
from reference_mechanisms.kernels.weight12.eight import arranged, rounded
from reference_mechanisms.kernels.weight12.launching import linear
from reference_mechanisms.kernels.weight12.packing import pack
from reference_mechanisms.kernels.weight12.schedule import (
    BLOCKS,
    CHOICES_BY_NAME,
    EIGHTS,
    Choice,
    Eight,
    Way,
    grouped_split,
    settled,
)
from tests.reference_mechanisms.kernels.test_weight12_cuda import finite, moderate, poisoned, tokens
from tests.reference_mechanisms.weight12 import samples
from tests.reference_mechanisms.weight12.samples import Shape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHAPES = [
    (64, 64),
    (65, 300),
    (333, 1000),
    (2051, 4160),
    (4096, 4096),
    (6144, 4096),
    (4096, 12288),
    (96, 17408),
]
TOKENS = (1, 7, 8, 9, 16, 17, 31, 32, 33, 64)
EVERYWHERE = dict.fromkeys(BLOCKS, Way(wgmma=True, wide=True))
BOTH = (EVERYWHERE, CHOICES_BY_NAME["plain"])
SAME_AT_ANY_NUMBER = [name for name in CHOICES_BY_NAME if name != "wgmma-above-8"]


@pytest.fixture(scope="module")
def hopper() -> None:
    if not has_wgmma(architecture(torch.cuda.current_device())):
        pytest.skip("this device has no wgmma")


@functools.lru_cache(maxsize=4)
def both(shape: Shape) -> tuple[Arranged, Arranged, Tensor]:
    """A matrix with a row of raw groups, packed and as its twin."""
    bits = moderate(finite(samples.heavy_tailed(shape, 11)))
    bits[shape[0] // 2] = moderate(finite(samples.random_bits((shape[1],), 12)))
    weight = torch.from_numpy(bits.copy()).cuda().view(torch.bfloat16)
    made = arrange(pack(weight), shape[1]), arrange_raw(weight)
    torch.cuda.synchronize()
    return *made, weight


def same_bits(one: Tensor, two: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.int16), two.contiguous().view(torch.int16))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CHOICES_BY_NAME)
def test_every_way_gives_the_bits_of_its_twin_and_is_right(name: str, shape: Shape) -> None:
    packed, twin, weight = both(shape)
    choice = CHOICES_BY_NAME[name]
    for count in TOKENS:
        x = tokens(count, shape[1])
        got = linear(x, packed, poisoned(count, shape[0]), choice=choice)
        assert same_bits(got, linear(x, twin, poisoned(count, shape[0]), choice=choice)), count
        exact = x.double() @ weight.double().t()
        magnitude = x.double().abs() @ weight.double().abs().t()
        error = (got.double() - exact).abs()
        assert bool((error <= exact.abs() * 2**-8 + magnitude * 2**-18 + 2**-133).all()), count


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SAME_AT_ANY_NUMBER)
def test_a_token_alone_gives_what_it_gives_among_others_in_every_way(name: str, shape: Shape) -> None:
    packed, _, _ = both(shape)
    choice, x = CHOICES_BY_NAME[name], tokens(64, shape[1])
    whole = linear(x, packed, choice=choice)
    for count in TOKENS:
        assert same_bits(linear(x[:count], packed, choice=choice), whole[:count]), count
        assert same_bits(linear(x[64 - count :], packed, choice=choice), whole[64 - count :]), count


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("eight", EIGHTS)
def test_eight_bits_in_wgmma_are_those_of_the_other_ways_up_to_the_order_of_sums(eight: Eight) -> None:
    _, _, weight = both((333, 1000))
    laid = arranged(rounded(weight.clamp(-8, 8), eight))
    torch.cuda.synchronize()
    for count in (1, 16, 32):
        x = tokens(count, 1000)
        torch.testing.assert_close(
            linear(x, laid, choice=EVERYWHERE), linear(x, laid), rtol=2**-7, atol=2**-7
        )


@pytest.mark.usefixtures("hopper")
def test_a_gate_with_wgmma_is_that_of_two_launches() -> None:
    _, _, weight = both((6144, 4096))
    plain, gated = arrange_raw(weight), arrange_raw(weight[in_turn(6144)].contiguous())
    gated = dataclasses.replace(gated, gated=True)
    torch.cuda.synchronize()
    x = tokens(16, 4096) * 2**-6
    gate, up = linear(x, plain, choice=EVERYWHERE).chunk(2, dim=1)
    found = linear(x, gated, choice=EVERYWHERE)
    torch.testing.assert_close(found, torch.nn.functional.silu(gate) * up, rtol=2**-6, atol=2**-120)


@pytest.mark.usefixtures("hopper")
def test_a_graph_of_dependent_products_repeats_the_eager_result() -> None:
    packed, _, _ = both((4096, 4096))
    x, outs = tokens(16, 4096) * 2**-12, [poisoned(16, 4096) for _ in range(4)]

    def run() -> None:
        value = x
        for out in outs:
            value = linear(value, packed, out, choice=EVERYWHERE)

    run()
    torch.cuda.synchronize()
    eager = [out.clone() for out in outs]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(10):
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
        assert all(same_bits(one, two) for one, two in zip(outs, eager, strict=True))


def recut(weight: Arranged, choice: Choice) -> Arranged:
    found, _ = settled(weight.split, weight.rows, weight.columns, choice)
    return dataclasses.replace(weight, split=found)


@pytest.mark.usefixtures("hopper")
def test_whether_wgmma_sums_as_mma_does() -> None:
    """Passes if every bit is the same with the same cuts; else it is told as an expected failure.

    Only if it passes may a `Choice` use wgmma for some numbers of tokens and mma.sync for others.
    """
    others = values = 0
    for shape in SHAPES:
        packed, twin, _ = both(shape)
        for weight in (packed, twin):
            cut = recut(weight, EVERYWHERE)
            assert cut.split == grouped_split(*shape)
            for count in (8, 32):
                for scale in (1.0, 2**-8):
                    x = tokens(count, shape[1], seed=count) * scale
                    bits = [linear(x, cut, choice=one).view(torch.int16) for one in BOTH]
                    others += int((bits[0] != bits[1]).sum())
                    values += bits[0].numel()
    if others:
        pytest.xfail(f"wgmma has other bits than mma.sync in {others} of {values} sums")
