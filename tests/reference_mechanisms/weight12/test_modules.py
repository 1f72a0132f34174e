from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from reference_mechanisms.errors import TargetError
from reference_mechanisms.weight12.errors import WeightError
from reference_mechanisms.weight12.linear import Embedding12, Linear12
from reference_mechanisms.weight12.modules import replace_layers
from tests.reference_mechanisms.weight12.test_target import FAMILIES, packed_of, write_model

IDS = torch.tensor([[2, 3, 5, 8, 13, 21, 34, 55]])


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def scrambled(folder: Path) -> Any:
    """The model of a folder with other weights."""
    model = load(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(IDS).logits
    return found.view(torch.int16)


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_with_packed_layers_is_the_plain_one_bit_for_bit(
    family: str, tied: bool, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", family, tied=tied)
    model = scrambled(folder)
    replaced = replace_layers(model, packed_of(folder))
    assert torch.equal(logits(model), logits(load(folder)))
    assert isinstance(model.model.layers[0].mlp.up_proj, Linear12)
    assert isinstance(model.model.layers[0].self_attn.k_proj, nn.Linear)
    assert isinstance(model.model.embed_tokens, Embedding12)
    assert isinstance(model.lm_head, Linear12)
    assert len(replaced) == 2 * 5 + 2
    assert (model.lm_head.lo is model.model.embed_tokens.lo) == tied
    out = model.generate(IDS, max_new_tokens=8, do_sample=False)
    assert torch.equal(out, load(folder).generate(IDS, max_new_tokens=8, do_sample=False))


def test_biases_of_packed_layers_are_the_folders(tmp_path: Path) -> None:
    config = Qwen2Config(
        vocab_size=300,
        hidden_size=256,
        intermediate_size=320,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    )
    made = Qwen2ForCausalLM(config).bfloat16()
    with torch.no_grad():
        made.model.layers[0].self_attn.q_proj.bias.normal_()
    made.save_pretrained(tmp_path / "model")
    model = scrambled(tmp_path / "model")
    replaced = replace_layers(model, packed_of(tmp_path / "model"))
    assert "model.layers.0.self_attn.q_proj" in replaced
    assert torch.equal(logits(model), logits(load(tmp_path / "model")))


def test_another_model_is_refused(tmp_path: Path) -> None:
    folder, other = write_model(tmp_path / "llama"), write_model(tmp_path / "qwen3", "qwen3")
    with pytest.raises(TargetError, match="has no place in this architecture"):
        replace_layers(load(folder), packed_of(other))
    with pytest.raises(TargetError, match=r"tensor model\.layers\.0\.self_attn\.q_norm\.weight is missing"):
        replace_layers(load(other), packed_of(folder))
    with pytest.raises(WeightError, match=r"has no weight12\.json"):
        replace_layers(load(folder), folder)


def test_tied_layers_need_one_matrix(tmp_path: Path) -> None:
    own = packed_of(write_model(tmp_path / "own"))
    tied = load(write_model(tmp_path / "tied", tied=True))
    with pytest.raises(TargetError, match=r"lm_head\.weight and model\.embed_tokens\.weight differ"):
        replace_layers(tied, own)


def test_a_layer_that_does_more_than_multiply_is_not_replaced(tmp_path: Path) -> None:
    class Scaled(nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) * 2

    folder = write_model(tmp_path / "model")
    model = load(folder)
    model.model.embed_tokens = Scaled(300, 256, dtype=torch.bfloat16)
    with pytest.raises(TargetError, match=r"embed_tokens is packed, but it is a Scaled"):
        replace_layers(model, packed_of(folder))
