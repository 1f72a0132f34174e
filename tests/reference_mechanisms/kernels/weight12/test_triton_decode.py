from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.arrange import arrange, arrange_raw
from reference_mechanisms.weight12.encode import encode
from reference_mechanisms.weight12.planes import Planes, from_packed
from tests.reference_mechanisms.weight12 import samples
from tests.reference_mechanisms.weight12.samples import Bits, Shape

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are defined
SHAPES: list[Shape] = [(70, 100), (33, 256), (1, 1), (96, 130)]


@pytest.fixture(scope="module")
def triton_decode() -> Any:
    pytest.importorskip("triton")
    from reference_mechanisms.kernels.weight12 import triton_decode  # noqa: PLC0415

    return triton_decode


def decoded(module: Any, form: str, matrix: Planes, rows: Tensor | range) -> Bits:
    out = torch.full((len(rows), matrix.columns), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    if form == "planes":
        slots = matrix.raw_slots() if len(matrix.rawrow) else None
        module.decode_planes(matrix, rows, slots, out)
    else:
        module.decode_arranged(arrange(matrix.arrays(), matrix.columns), rows, out)
    return np.asarray(out.cpu().view(torch.uint16).numpy())


@pytest.mark.parametrize("form", ["planes", "units"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", samples.KINDS)
def test_every_weight_is_the_one_that_was_packed(
    triton_decode: Any, kind: str, shape: Shape, form: str
) -> None:
    bits = samples.KINDS[kind](shape, 3)
    matrix = from_packed(encode(bits)).to(DEVICE)
    assert np.array_equal(decoded(triton_decode, form, matrix, range(shape[0])), bits)


@pytest.mark.parametrize("form", ["planes", "units"])
@pytest.mark.parametrize("kind", ["normal", "one_spread_row", "random_bits"])
def test_some_rows_are_those_of_the_matrix(triton_decode: Any, kind: str, form: str) -> None:
    bits = samples.KINDS[kind]((90, 192), 4)
    matrix = from_packed(encode(bits)).to(DEVICE)
    assert np.array_equal(decoded(triton_decode, form, matrix, range(37, 90)), bits[37:90])
    ids = torch.tensor([45, 0, 89, 45, 44], device=DEVICE)
    assert np.array_equal(decoded(triton_decode, form, matrix, ids), bits[ids.cpu().numpy()])


def test_units_of_bf16_are_refused(triton_decode: Any) -> None:
    weight = torch.zeros((32, 64), dtype=torch.bfloat16, device=DEVICE)
    with pytest.raises(ValueError, match="hold bf16"):
        triton_decode.decode_arranged(arrange_raw(weight), range(32), weight)
