from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from reference_mechanisms.drafters.rotation import Rope, Yarn, frequencies, rotate, rotation
from reference_mechanisms.targets.rope import RopeScaling


@pytest.mark.parametrize(
    ("factor", "original", "theta"), [(32.0, 8192, 1e7), (4.0, 4096, 1e4), (40.0, 512, 1e6)]
)
def test_yarn_is_that_of_transformers(factor: float, original: int, theta: float) -> None:
    config = LlamaConfig(
        head_dim=128,
        max_position_embeddings=int(factor * original),
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "original_max_position_embeddings": original,
        },
    )
    stock, scale = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    found, found_scale = frequencies(Rope(RopeScaling(theta), Yarn(factor, original)), 128)
    torch.testing.assert_close(found, stock, rtol=1e-6, atol=0)
    assert found_scale == pytest.approx(scale)


def test_a_stated_attention_factor_wins() -> None:
    assert frequencies(Rope(RopeScaling(1e4), Yarn(8.0, 64, attention_factor=1.5)), 8)[1] == 1.5


def test_a_rotation_depends_on_the_distance_only() -> None:
    x = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    products = []
    for shift in (0, 11):
        turned = rotate(x, rotation(Rope(RopeScaling(100.0)), 8, torch.tensor([3, 7]) + shift, x.dtype))
        products.append(float((turned[0] * turned[1]).sum()))
    assert products[0] == pytest.approx(products[1], abs=1e-5)
    assert abs(products[0] - float((x[0] * x[1]).sum())) > 1e-3
