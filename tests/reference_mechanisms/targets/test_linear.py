from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from reference_mechanisms.targets.linear import RowLinear, prepacks
from tests.reference_mechanisms.targets.models import CPU

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
# Against the product in float64; results reach 40, where half a step of bfloat16 is 0.125.
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 0.2, torch.float16: 0.03, torch.float64: 1e-12}


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_it_is_the_product_with_the_transposed_weight(dtype: torch.dtype, rows: int, biased: bool) -> None:
    weight, bias = random(48, 100, dtype=dtype), random(48, dtype=dtype, seed=1) if biased else None
    x = random(rows, 100, dtype=dtype, seed=2)
    with torch.inference_mode():
        found = RowLinear(weight, bias)(x)
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert found.shape == (rows, 48)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("sizes", [(960, 576), (61, 24), (256, 1536)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_row_is_bitwise_the_same_among_any_number_of_rows(
    dtype: torch.dtype, sizes: tuple[int, int], threads: int
) -> None:
    if not prepacks(dtype, CPU):
        pytest.skip(f"no prepacked product for {dtype} here: torch's own rounds by the row count")
    with torch.inference_mode():
        linear = RowLinear(random(*sizes, dtype=dtype), random(sizes[0], dtype=dtype, seed=1))
        x = random(65, sizes[1], dtype=dtype, seed=2)
        alone = torch.cat([linear(row[None]) for row in x])
        for rows in (*range(2, 10), 16, 24, 64, 65):
            assert torch.equal(linear(x[:rows]), alone[:rows]), f"{rows} rows"
            assert torch.equal(linear(x[-rows:]), alone[-rows:]), f"the last {rows} rows"


def test_only_types_that_onednn_knows_are_prepacked() -> None:
    assert not prepacks(torch.float64, CPU)
    assert not prepacks(torch.int8, CPU)
    assert prepacks(torch.float32, CPU) is torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def test_nothing_is_prepacked_off_the_cpu() -> None:
    assert not any(prepacks(dtype, torch.device("meta")) for dtype in TYPES)
