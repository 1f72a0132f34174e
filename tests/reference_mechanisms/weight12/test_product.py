from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.weight12 import product
from reference_mechanisms.weight12.encode import encode
from reference_mechanisms.weight12.planes import from_packed
from tests.reference_mechanisms.weight12 import samples
from tests.reference_mechanisms.weight12.samples import Bits

GPU = torch.cuda.is_available()
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="needs a CUDA device")]),
]
on_devices = pytest.mark.parametrize("device", DEVICES)


def stored(bits: Bits, device: str) -> tuple[product.Stored, Tensor]:
    weight = torch.from_numpy(bits.copy()).view(torch.bfloat16).to(device)
    return product.store(from_packed(encode(bits)).to(device)), weight


def tokens(count: int, columns: int, device: str) -> Tensor:
    draw = torch.Generator().manual_seed(count)
    return torch.randn((count, columns), generator=draw).bfloat16().to(device)


def near(found: Tensor, x: Tensor, weight: Tensor) -> bool:
    exact = x.double() @ weight.double().t()
    bound = exact.abs() * 2**-8 + (x.double().abs() @ weight.double().abs().t()) * 2**-18
    return bool(((found.double() - exact).abs() <= bound).all())


@on_devices
@pytest.mark.parametrize("count", [0, 1, 64, 65, 200])
@pytest.mark.parametrize("kind", ["normal", "heavy_tailed"])
def test_the_product_is_right_for_any_number_of_tokens(kind: str, count: int, device: str) -> None:
    weight, plain = stored(samples.KINDS[kind]((130, 320), 1), device)
    x = tokens(count, 320, device)
    found = product.linear(x, weight)
    assert found.shape == (count, 130)
    assert near(found, x, plain)
    assert torch.equal(product.linear(x[None], weight), found[None])


@on_devices
def test_many_tokens_multiply_blocks_of_rows_that_fit_a_scratch(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, plain = stored(samples.one_spread_row((200, 320), 2), device)
    monkeypatch.setattr(product, "SCRATCH_BYTES", 2 * 320 * 70)  # 64 rows
    x = torch.eye(320, device=device, dtype=torch.bfloat16)
    # A product with ones and zeros reads the weights out, but not beside infinities.
    clean = torch.where(plain.isfinite(), plain, 0)
    rows = plain.isfinite().all(1)
    assert torch.equal(product.linear(x, weight)[:, rows], clean.t()[:, rows])


@on_devices
def test_the_bias_is_added_to_the_product(device: str) -> None:
    weight, _ = stored(samples.normal((70, 128), 3), device)
    x, bias = tokens(3, 128, device), tokens(1, 70, device)[0]
    assert torch.equal(product.linear(x, weight, bias), product.linear(x, weight) + bias)


@on_devices
@pytest.mark.parametrize("kind", ["normal", "one_spread_row", "non_finite"])
def test_rows_are_expanded_and_looked_up_bit_for_bit(kind: str, device: str) -> None:
    bits = samples.KINDS[kind]((90, 130), 4)
    weight, _ = stored(bits, device)
    ids = torch.tensor([[3, 89], [45, 3]], device=device)

    def patterns(found: Tensor) -> Bits:
        return np.asarray(found.cpu().view(torch.uint16).numpy())

    assert np.array_equal(patterns(product.expand(weight, 0, 90)), bits)
    assert np.array_equal(patterns(product.expand(weight, 37, 50)), bits[37:50])
    assert np.array_equal(patterns(product.embed(ids, weight)), bits[ids.cpu().numpy()])
    assert np.array_equal(patterns(product.embed(ids.int(), weight)), bits[ids.cpu().numpy()])
    assert product.embed(ids[:0], weight).shape == (0, 2, 130)


@on_devices
def test_the_operators_hold_what_torch_asks_of_them(device: str) -> None:
    weight, _ = stored(samples.one_spread_row((64, 128), 5), device)
    rest = (list(weight.tensors), weight.rows, weight.columns, weight.layout)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.specpilot.weight12_linear, (tokens(2, 128, device), *rest), test_utils=checks
    )
    ids = torch.tensor([1, 5], device=device)
    torch.library.opcheck(torch.ops.specpilot.weight12_rows, (ids, *rest), test_utils=checks)


def test_a_traced_model_has_one_node_a_product() -> None:
    weight, plain = stored(samples.normal((64, 128), 6), "cpu")

    def model(x: Tensor) -> Tensor:
        return F.relu(product.linear(x, weight))

    x = tokens(2, 128, "cpu")
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    found = torch.compile(model, backend=keep, fullgraph=True)(x)
    assert torch.equal(found, F.relu(product.linear(x, weight)))
    calls = [node for node in graphs[0].graph.nodes if "weight12" in str(node.target)]
    assert len(graphs) == len(calls) == 1
    assert near(product.linear(x, weight), x, plain)


def test_a_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in [name for name in sys.modules if "triton_" in name and "weight12" in name]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(RuntimeError, match="needs Triton: pip install triton"):
        product._triton("triton_linear")


def test_the_size_is_that_of_the_format() -> None:
    packed = encode(samples.normal((256, 320), 1))
    assert product.store(from_packed(packed)).stored_bytes == packed.stored_bytes
