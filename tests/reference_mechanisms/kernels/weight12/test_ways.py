"""One body for every way to multiply with packed weights: torch, Triton (interpreted without a GPU), CUDA."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.kernels.weight12.arrange import Arranged, arrange, arrange_raw
from reference_mechanisms.kernels.weight12.launching import linear as cuda_linear
from reference_mechanisms.kernels.weight12.schedule import CHOICE, CHOICES_BY_NAME, Choice
from reference_mechanisms.weight12.encode import encode
from reference_mechanisms.weight12.planes import Planes, from_packed
from tests.exhaustive import slow_but
from tests.reference_mechanisms.weight12 import samples
from tests.reference_mechanisms.weight12.samples import Bits, Shape

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are defined

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Way:
    """Products with a packed matrix and with its twin in bf16, and whether a token's is its own."""

    packed: Callable[[Planes], Product]
    twin: Callable[[Tensor], Product]
    own: bool


def triton_linear() -> Any:
    pytest.importorskip("triton")
    from reference_mechanisms.kernels.weight12 import triton_linear  # noqa: PLC0415

    return triton_linear


def on_triton() -> Way:
    return Way(
        lambda matrix: lambda x: triton_linear().linear(x, matrix),
        lambda weight: lambda x: triton_linear().twin(x, weight),
        own=True,
    )


def on_cuda(choice: Choice, own: bool = True) -> Way:
    def product(arranged: Arranged) -> Product:
        torch.cuda.synchronize()
        return lambda x: cuda_linear(x, arranged, choice=choice)

    return Way(
        lambda matrix: product(arrange(matrix.arrays(), matrix.columns)),
        lambda weight: product(arrange_raw(weight)),
        own=own,
    )


WAYS = {
    "torch": Way(
        lambda matrix: lambda x: F.linear(x, matrix.decode()), lambda w: lambda x: F.linear(x, w), False
    ),
    "triton": on_triton(),
    "triton on a GPU": on_triton(),
    "cuda": on_cuda(CHOICE),
    # The last one's bits hang on the tokens if wgmma does not sum as mma.sync does.
    **{f"cuda {name}": on_cuda(CHOICES_BY_NAME[name], name != "wgmma-above-8") for name in CHOICES_BY_NAME},
}
NEEDS_A_DEVICE = [pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="needs a CUDA device")]
MARKS = {name: NEEDS_A_DEVICE for name in WAYS if name == "triton on a GPU" or name.startswith("cuda")}
SHAPES: list[Shape] = [(70, 100), (130, 320), (40, 1024)]
if GPU:
    SHAPES += [(333, 1000), (2051, 4160), (4096, 4096)]
KINDS = ("normal", "heavy_tailed", "zero_rich", "one_spread_row")

every_way = pytest.mark.parametrize("way", [pytest.param(one, marks=MARKS.get(one, [])) for one in WAYS])


def moderate(bits: Bits) -> Bits:
    """The same patterns with exponents of at most 150, so that no sum overflows."""
    return np.asarray(np.where((bits & 0x7F80) > 150 << 7, bits & 0xBFFF, bits), np.uint16)


def both(bits: Bits) -> tuple[Planes, Tensor]:
    matrix = from_packed(encode(bits)).to(DEVICE)
    return matrix, torch.from_numpy(bits.copy()).to(DEVICE).view(torch.bfloat16)


def tokens(count: int, columns: int) -> Tensor:
    draw = torch.Generator().manual_seed(count)
    return torch.randn((count, columns), generator=draw).bfloat16().to(DEVICE)


def same_bits(one: Tensor, two: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.int16), two.contiguous().view(torch.int16))


PRODUCTS = [(shape, kind) for shape in SHAPES for kind in KINDS]
FEW = [one for one in PRODUCTS if one[0] == SHAPES[0] or one[1] == "one_spread_row"]


@every_way
@pytest.mark.parametrize(("shape", "kind"), PRODUCTS if GPU else slow_but(FEW, PRODUCTS), ids=str)
def test_the_product_is_that_of_the_twin_and_right(way: str, kind: str, shape: Shape) -> None:
    matrix, weight = both(moderate(samples.KINDS[kind](shape, 3)))
    product, twin = WAYS[way].packed(matrix), WAYS[way].twin(weight)
    for count in (1, 19):
        x = tokens(count, shape[1])
        got = product(x)
        assert same_bits(got, twin(x))
        exact = x.double() @ weight.double().t()
        magnitude = x.double().abs() @ weight.double().abs().t()
        error = (got.double() - exact).abs()
        assert bool((error <= exact.abs() * 2**-8 + magnitude * 2**-18 + 2**-133).all())


@every_way
def test_a_one_hot_token_reads_out_every_column_bit_for_bit(way: str) -> None:
    matrix, weight = both(samples.heavy_tailed((70, 128), 4))
    product = WAYS[way].packed(matrix)
    for start in (0, 64):
        x = torch.zeros((64, 128), device=DEVICE, dtype=torch.bfloat16)
        x[torch.arange(64), start + torch.arange(64)] = 1
        assert torch.equal(product(x), weight[:, start : start + 64].t())


@every_way
def test_specials_spread_as_in_the_twin(way: str) -> None:
    # Nine groups are no whole number for each of the parts that the columns are split into, and behind
    # the last group of a finite row lies the first one of a row that is not.
    bits = samples.normal((70, 576), 5)
    bits[1::2] = samples.non_finite((35, 576), 5)
    matrix, weight = both(bits)
    x = tokens(5, 576)
    with np.errstate(invalid="ignore"):  # the interpreter's
        got, expected = WAYS[way].packed(matrix)(x), WAYS[way].twin(weight)(x)
    assert bool(got[:, 1::2].isnan().any())
    assert bool(got[:, ::2].isfinite().all())
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize(
    "way", [pytest.param(name, marks=MARKS.get(name, [])) for name, way in WAYS.items() if way.own]
)
@pytest.mark.parametrize(
    "shape", [pytest.param(one, marks=() if GPU or one[0] < 100 else pytest.mark.slow) for one in SHAPES[1:]]
)
def test_a_token_alone_gives_what_it_gives_among_others(way: str, shape: Shape) -> None:
    product = WAYS[way].packed(both(moderate(samples.one_spread_row(shape, 2)))[0])
    x = tokens(33, shape[1])
    whole = product(x)
    for first, last in ((0, 1), (15, 18), (32, 33)):
        assert same_bits(product(x[first:last]), whole[first:last])


def test_rows_of_x_may_be_apart_and_none_may_be_given() -> None:
    module = triton_linear()
    matrix, _ = both(samples.normal((70, 128), 6))
    wide = tokens(3, 300)
    apart = wide[:, 7:135]
    assert same_bits(module.linear(apart, matrix), module.linear(apart.contiguous(), matrix))
    assert module.linear(wide[:0, :128], matrix).shape == (0, 70)


def test_what_does_not_fit_is_refused() -> None:
    module = triton_linear()
    matrix, weight = both(samples.normal((70, 128), 6))
    for bad in (tokens(1, 127), tokens(1, 128).float(), tokens(1, 128)[0], tokens(1, 256)[:, ::2]):
        with pytest.raises(ValueError, match=r"x is .*, not bf16"):
            module.linear(bad, matrix)
        with pytest.raises(ValueError, match=r"x is .*, not bf16"):
            module.twin(bad, weight)
