from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.gated_delta import DeltaSizes
from reference_mechanisms.targets.hybrid_config import (
    HYBRIDS,
    HybridConfig,
    LayerKind,
    parse_hybrid_config,
    read_hybrid_config,
)
from reference_mechanisms.targets.rope import RopeScaling
from tests.reference_mechanisms.targets.hybrids import PREFIXES, write_hybrid

FULL: LayerKind = "full_attention"
LINEAR: LayerKind = "linear_attention"
NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "num_experts": 0,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": 320,
}
SEEING = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": NEXT}


def parsed(**fields: Any) -> HybridConfig:
    return parse_hybrid_config(NEXT | fields, "config.json")


def test_every_field_finds_its_place() -> None:
    assert parsed(tie_word_embeddings=True, attention_bias=True) == HybridConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        kinds=(LINEAR, LINEAR, LINEAR, FULL, LINEAR),
        heads=4,
        kv_heads=2,
        head_dim=32,
        rotary_dim=16,
        delta=DeltaSizes(key_heads=2, value_heads=6, key_dim=8, value_dim=12, kernel=4),
        norm_eps=1e-5,
        rope=RopeScaling(500000.0),
        max_positions=2048,
        tied_head=True,
        attention_bias=True,
        layout=HYBRIDS["Qwen3NextForCausalLM"],
    )
    assert parsed().layers == 5


def test_layers_are_those_of_layer_types_else_every_fourth_is_full_attention() -> None:
    assert parsed(layer_types=[FULL, FULL, LINEAR, FULL, LINEAR]).kinds == (FULL, FULL, LINEAR, FULL, LINEAR)
    assert parsed(full_attention_interval=2).kinds == (LINEAR, FULL, LINEAR, FULL, LINEAR)


def test_a_quarter_of_a_head_is_rotated_if_nothing_is_said() -> None:
    assert parsed(partial_rotary_factor=None).rotary_dim == 8
    nested = {"rope_theta": 7.0, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 2]}
    assert parsed(rope_parameters=nested).rotary_dim == 8
    assert parsed(rope_parameters=nested).rope == RopeScaling(7.0)


def test_the_text_model_may_be_one_field_of_the_file() -> None:
    config = parse_hybrid_config(SEEING | {"tie_word_embeddings": True}, "config.json")
    assert (config.layers, config.tied_head, config.layout.prefix) == (5, True, "model.language_model.")


@pytest.mark.parametrize("family", list(PREFIXES))
def test_what_stock_writes_is_read(tmp_path: Path, family: str) -> None:
    config = read_hybrid_config(write_hybrid(tmp_path, family, tie_word_embeddings=True))
    assert config.kinds == (LINEAR, LINEAR, LINEAR, FULL)
    assert (config.rotary_dim, config.tied_head) == (4, True)
    assert config.layout.prefix == PREFIXES[family]


@pytest.mark.parametrize(
    "fields",
    [
        {"num_experts": 8, "mlp_only_layers": [0, 1, 2, 3, 4]},
        {"num_experts": 8, "decoder_sparse_step": 6},
        {"num_experts": 8, "decoder_sparse_step": 3, "mlp_only_layers": [2]},
    ],
)
def test_a_model_whose_layers_are_all_dense_may_name_experts(fields: dict[str, Any]) -> None:
    assert parsed(**fields).layers == 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["Qwen3NextForQuestionAnswering"]}, "`architectures` is ['Qwen3NextForQ"),
        ({"architectures": ["LlamaForCausalLM"]}, "`architectures` is ['LlamaForCausalLM']"),
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "`quantization_config` is present"),
        ({"num_experts": 8}, "`num_experts` is 8 and layer 0 is not in `mlp_only_layers`"),
        ({"num_experts": 8, "mlp_only_layers": [0, 1, 2, 4]}, "layer 3 is not in `mlp_only_layers`"),
        ({"num_experts": 8, "decoder_sparse_step": 2}, "layer 1 is not in `mlp_only_layers`"),
        ({"mlp_only_layers": 3}, "`mlp_only_layers` must be a list of layers, got 3"),
        ({"layer_types": [LINEAR] * 4}, "`layer_types` is ['linear_attention', "),
        ({"layer_types": [*[LINEAR] * 4, "sliding_attention"]}, "for each of `num_hidden_layers` = 5"),
        ({"layer_types": [*[LINEAR] * 5, "mamba"]}, "`layer_types` is"),
        ({"layer_types": FULL}, "`layer_types` is 'full_attention'"),
        ({"num_key_value_heads": 3}, "`num_attention_heads` = 4 is no multiple of `num_key_value_heads` = 3"),
        (
            {"linear_num_key_heads": 4},
            "`linear_num_value_heads` = 6 is no multiple of `linear_num_key_heads`",
        ),
        ({"partial_rotary_factor": 0.1}, "`partial_rotary_factor` of `head_dim` = 32 rotates 3 numbers"),
        ({"partial_rotary_factor": 1.5}, "`partial_rotary_factor` = 1.5 is above 1"),
        ({"partial_rotary_factor": 0}, "`partial_rotary_factor` must be a positive number, got 0"),
        ({"rope_parameters": {"partial_rotary_factor": 0.0}}, "`partial_rotary_factor` must be a positive"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "`rope_type` is 'yarn'"),
        ({"attn_output_gate": False}, "`attn_output_gate` is false"),
        ({"mamba_ssm_dtype": "bfloat16"}, "`mamba_ssm_dtype` is 'bfloat16'"),
    ],
)
def test_what_this_target_is_not_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TargetError, match="^config.json: .*" + re.escape(message)):
        parsed(**fields)


def test_experts_left_out_are_those_that_stock_takes() -> None:
    left_out = {field: value for field, value in NEXT.items() if field != "num_experts"}
    with pytest.raises(TargetError, match="`num_experts` is 512"):
        parse_hybrid_config(left_out, "config.json")


@pytest.mark.parametrize(
    "name",
    sorted(set(NEXT) - {"architectures", "hidden_act", "num_experts", "partial_rotary_factor", "rope_theta"}),
)
def test_a_size_that_is_missing_is_named(name: str) -> None:
    left_out = {field: value for field, value in NEXT.items() if field != name}
    with pytest.raises(TargetError, match=f"`{name}` must be a positive .*, got None"):
        parse_hybrid_config(left_out, "config.json")


def test_a_text_model_that_is_missing_is_named_and_its_fields_too() -> None:
    with pytest.raises(TargetError, match="`text_config` must be an object, got None"):
        parse_hybrid_config({"architectures": SEEING["architectures"]}, "config.json")
    with pytest.raises(TargetError, match=r"config.json: `text_config`: `vocab_size` must be"):
        parse_hybrid_config(SEEING | {"text_config": NEXT | {"vocab_size": 0}}, "config.json")
