from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from reference_mechanisms.targets.rope import RopeScaling, inverse_frequencies, rotate_, rotation_table

HEAD_DIM = 64
CASES: list[tuple[RopeScaling, dict[str, Any]]] = [
    (RopeScaling(10000.0), {"rope_type": "default", "rope_theta": 10000.0}),
    (
        RopeScaling(100000.0, "linear", factor=2.5),
        {"rope_type": "linear", "rope_theta": 100000.0, "factor": 2.5},
    ),
    (
        RopeScaling(500000.0, "llama3", 32.0, 1.0, 4.0, original_positions=8192),
        {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
]
TYPES = [torch.float32, torch.bfloat16, torch.float64]

scalings = pytest.mark.parametrize(("scaling", "fields"), CASES, ids=[case[0].kind for case in CASES])


def stock(fields: dict[str, Any]) -> LlamaRotaryEmbedding:
    sizes = {"hidden_size": 4 * HEAD_DIM, "num_attention_heads": 4, "max_position_embeddings": 131072}
    return LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=fields))


@scalings
def test_frequencies_are_bitwise_those_of_stock(scaling: RopeScaling, fields: dict[str, Any]) -> None:
    assert torch.equal(inverse_frequencies(scaling, HEAD_DIM), stock(fields).inv_freq)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@scalings
def test_a_rotation_is_bitwise_that_of_stock(
    scaling: RopeScaling, fields: dict[str, Any], dtype: torch.dtype
) -> None:
    made = torch.Generator().manual_seed(0)
    positions = torch.tensor([0, 1, 2, 255, 256, 3000, 8191])
    x = torch.randn((len(positions), 3, HEAD_DIM), generator=made).to(dtype)
    cosines, sines = stock(fields)(x, positions[None])
    wanted, _ = apply_rotary_pos_emb(x[None], x[None], cosines, sines, unsqueeze_dim=2)
    rotate_(x, rotation_table(scaling, HEAD_DIM, 8192, dtype)[positions])
    assert torch.equal(x, wanted[0])


def test_a_rotation_does_not_touch_its_neighbours() -> None:
    # The target rotates queries and keys inside the fused product; the values lie behind them.
    qkv = torch.randn((5, 4, HEAD_DIM), generator=torch.Generator().manual_seed(0))
    before = qkv.clone()
    rotate_(qkv[:, :3], rotation_table(RopeScaling(10000.0), HEAD_DIM, 6, torch.float32)[1:])
    assert torch.equal(qkv[:, 3], before[:, 3])
    assert not torch.isclose(qkv[:, :3], before[:, :3]).all(-1).any()


@pytest.mark.parametrize("positions", [257, 1000, 4096])
def test_a_longer_table_begins_with_the_shorter_one(positions: int) -> None:
    scaling = RopeScaling(10000.0)
    short = rotation_table(scaling, HEAD_DIM, 256, torch.float32)
    assert torch.equal(rotation_table(scaling, HEAD_DIM, positions, torch.float32)[:256], short)
