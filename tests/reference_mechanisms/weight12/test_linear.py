from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from reference_mechanisms.weight12.decode import decode
from reference_mechanisms.weight12.encode import encode
from reference_mechanisms.weight12.linear import Embedding12, Linear12
from reference_mechanisms.weight12.planes import from_packed
from tests.reference_mechanisms.weight12 import samples
from tests.reference_mechanisms.weight12.samples import Bits

FINITE = ("normal", "heavy_tailed", "zero_rich")


def layer(bits: Bits, *, bias: bool) -> nn.Linear:
    linear = nn.Linear(bits.shape[1], bits.shape[0], bias=bias, dtype=torch.bfloat16)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(bits).view(torch.bfloat16))
    return linear


def same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.dtype == two.dtype and torch.equal(one.view(torch.int16), two.view(torch.int16))


@pytest.mark.parametrize("shape", [(192, 576), (70, 100), (1, 1), (5, 65), (300, 256)], ids=str)
@pytest.mark.parametrize("kind", samples.KINDS)
def test_the_weight_is_decoded_bit_for_bit(kind: str, shape: tuple[int, int]) -> None:
    bits = samples.KINDS[kind](shape, 5)
    packed = encode(bits)
    found = Linear12.from_packed(packed).weight
    assert found.is_contiguous()
    assert np.array_equal(found.view(torch.uint16).numpy(), bits)
    assert np.array_equal(decode(packed), bits)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("rows", [1, 2, 8, 17])
@pytest.mark.parametrize("kind", FINITE)
def test_the_result_is_that_of_the_bf16_layer_bit_for_bit(kind: str, rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    raw = layer(samples.KINDS[kind]((320, 448), 6), bias=bias)
    x = torch.randn(rows, 448, dtype=torch.bfloat16)
    with torch.no_grad():
        assert same_bits(Linear12.from_linear(raw)(x), raw(x))
        assert same_bits(Linear12.from_linear(raw)(x[None]), raw(x[None]))


def test_the_state_is_the_stored_arrays_and_loads_again() -> None:
    bits = samples.one_spread_row((64, 256))
    raw, turned = layer(bits, bias=True), layer(bits[::-1].copy(), bias=True)
    state = Linear12.from_linear(raw).state_dict()
    assert list(state) == ["lo", "code", "pidx", "ptab", "rawrow", "rawval", "bias"]
    other = Linear12.from_linear(turned)
    assert not same_bits(other.weight, raw.weight.detach())
    other.load_state_dict(state)
    assert same_bits(other.weight, raw.weight.detach())


def test_a_model_made_float32_keeps_its_codes_and_weights() -> None:
    raw = layer(samples.one_spread_row((64, 256)), bias=False)
    packed = Linear12.from_linear(raw).float()
    assert len(packed.matrix().rawrow)
    assert packed.lo.dtype == torch.uint8
    assert same_bits(packed.weight, raw.weight.detach())


@pytest.mark.parametrize("kind", samples.KINDS)
def test_an_embedding_gives_the_rows_of_the_bf16_one(kind: str) -> None:
    bits = samples.KINDS[kind]((100, 192), 7)
    ids = torch.tensor([[0, 99, 50], [50, 7, 0]])
    packed = Embedding12(from_packed(encode(bits)))
    assert same_bits(packed(ids), F.embedding(ids, packed.weight))
    assert same_bits(packed.weight, torch.from_numpy(bits).view(torch.bfloat16))


def test_what_is_no_bf16_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match="packs bfloat16, not"):
        Linear12.from_linear(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="a matrix, not a tensor of shape"):
        Linear12.from_packed(encode(samples.normal((2, 3, 64))))
