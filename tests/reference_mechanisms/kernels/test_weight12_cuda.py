from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.arrange import Arranged, arrange, arrange_raw
from reference_mechanisms.kernels.weight12.launching import linear
from reference_mechanisms.kernels.weight12.packing import pack
from tests.reference_mechanisms.weight12 import samples

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TOKENS = (1, 2, 3, 7, 8, 9, 16, 17, 32, 33, 64)
SHAPES = ((64, 64), (1, 256), (65, 300), (333, 1000), (512, 4096), (2051, 4160), (640, 12288), (96, 17408))


def finite(bits: samples.Bits) -> samples.Bits:
    """The same patterns without infinities and NaNs: the exponent 255 becomes 130."""
    bad = (bits & 0x7F80) == 0x7F80
    return np.asarray(np.where(bad, (bits & 0x807F) | 130 << 7, bits), np.uint16)


def moderate(bits: samples.Bits) -> samples.Bits:
    """The same patterns with exponents of at most 150, so that no sum overflows."""
    return np.asarray(np.where((bits & 0x7F80) > 150 << 7, bits & 0xBFFF, bits), np.uint16)


def on_gpu(bits: samples.Bits) -> Tensor:
    return torch.from_numpy(bits.copy()).cuda().view(torch.bfloat16)


def both(weight: Tensor) -> tuple[Arranged, Arranged]:
    packed, twin = arrange(pack(weight), weight.shape[1]), arrange_raw(weight)
    torch.cuda.synchronize()
    return packed, twin


def tokens(count: int, columns: int, seed: int = 0) -> Tensor:
    draw = torch.Generator("cuda").manual_seed(seed)
    return torch.randn((count, columns), device="cuda", generator=draw).bfloat16()


def poisoned(count: int, rows: int) -> Tensor:
    return torch.full((count, rows), float("nan"), device="cuda", dtype=torch.bfloat16)


def same_bits(one: Tensor, two: Tensor) -> bool:
    return torch.equal(one.view(torch.int16), two.view(torch.int16))


KINDS: dict[str, Callable[[samples.Shape, int], samples.Bits]] = {
    name: samples.KINDS[name]
    for name in ("normal", "heavy_tailed", "zero_rich", "one_spread_row", "non_finite")
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_output_is_bitwise_that_of_the_twin_that_reads_bf16(kind: str, shape: samples.Shape) -> None:
    packed, twin = both(on_gpu(finite(KINDS[kind](shape, 1))))
    for count in TOKENS:
        x = tokens(count, shape[1])
        got = linear(x, packed, poisoned(count, shape[0]))
        assert same_bits(got, linear(x, twin, poisoned(count, shape[0]))), count


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("raw", [False, True], ids=["packed", "twin"])
def test_a_token_alone_gives_what_it_gives_among_others(shape: samples.Shape, raw: bool) -> None:
    weight = both(on_gpu(samples.one_spread_row(shape, 2)))[raw]
    x = tokens(64, shape[1])
    whole = linear(x, weight)
    for count in TOKENS:
        assert same_bits(linear(x[:count], weight), whole[:count]), count
        assert same_bits(linear(x[64 - count :], weight), whole[64 - count :]), count


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_product_is_exact_to_the_rounding_of_bf16(kind: str, shape: samples.Shape) -> None:
    weight = on_gpu(moderate(finite(KINDS[kind](shape, 3))))
    packed, _ = both(weight)
    for count in (1, 8, 33, 64):
        x = tokens(count, shape[1])
        exact = x.double() @ weight.double().t()
        magnitude = x.double().abs() @ weight.double().abs().t()
        error = (linear(x, packed, poisoned(count, shape[0])).double() - exact).abs()
        assert bool((error <= exact.abs() * 2**-8 + magnitude * 2**-18 + 2**-133).all()), count


def test_a_one_hot_token_reads_out_every_column_bit_for_bit() -> None:
    bits = finite(samples.heavy_tailed((200, 320), 4))
    packed, _ = both(on_gpu(bits))
    weight = on_gpu(bits)
    for start in range(0, 320, 64):
        x = torch.zeros((64, 320), device="cuda", dtype=torch.bfloat16)
        x[torch.arange(64), start + torch.arange(64)] = 1
        assert torch.equal(linear(x, packed), weight[:, start : start + 64].t().contiguous())


def test_specials_spread_as_in_the_twin() -> None:
    packed, twin = both(on_gpu(samples.non_finite((256, 512), 5)))
    x = tokens(16, 512)
    got, expected = linear(x, packed), linear(x, twin)
    assert bool(got.isnan().any())
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("raw_rows", [1, 30])
def test_groups_that_no_palette_covers_are_patched(raw_rows: int) -> None:
    bits = samples.normal((300, 1000), 8)
    bits[:raw_rows, 64:400] = moderate(finite(samples.random_bits((raw_rows, 336), 9)))
    packed, twin = both(on_gpu(bits))
    assert packed.highs is not None
    for count in (1, 9, 32):
        x = tokens(count, 1000)
        assert same_bits(linear(x, packed), linear(x, twin)), count


def test_rows_of_x_and_of_the_output_may_be_apart() -> None:
    packed, _ = both(on_gpu(samples.normal((192, 1024), 6)))
    wide, out = tokens(9, 2000), poisoned(9, 500)
    for first in (0, 3, 8):
        x = wide[:, first : first + 1024]
        linear(x, packed, out[:, 7:199])
        assert same_bits(out[:, 7:199].contiguous(), linear(x.contiguous(), packed))
    assert bool(out[:, :7].isnan().all())
    assert bool(out[:, 199:].isnan().all())


def test_a_graph_of_dependent_products_repeats_the_eager_result() -> None:
    layers = [both(on_gpu(samples.normal((2048, 2048), seed)))[0] for seed in range(8)]
    x, outs = tokens(8, 2048), [poisoned(8, 2048) for _ in layers]

    def run() -> None:
        value = x
        for layer, out in zip(layers, outs, strict=True):
            value = linear(value, layer, out)

    run()
    torch.cuda.synchronize()
    eager = outs[-1].clone()
    expected = x
    for layer in layers:
        expected = linear(expected, layer)
        torch.cuda.synchronize()
    assert same_bits(eager, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(20):
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
        assert same_bits(outs[-1], eager)


def test_what_does_not_fit_is_refused() -> None:
    packed, _ = both(on_gpu(samples.normal((64, 256), 7)))
    for bad in (
        tokens(65, 256),
        tokens(1, 255),
        tokens(1, 256).float(),
        tokens(1, 256).cpu(),
        tokens(0, 256),
    ):
        with pytest.raises(ValueError, match=r"x is|tokens"):
            linear(bad, packed)
    with pytest.raises(ValueError, match="out is"):
        linear(tokens(2, 256), packed, poisoned(1, 64))
