from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reference_mechanisms.errors import MechanismError, TargetError
from reference_mechanisms.targets.config import LlamaConfig, parse_config, read_config, read_json
from reference_mechanisms.targets.rope import RopeScaling
from tests.reference_mechanisms.targets.models import write_model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": 320,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def parsed(**fields: Any) -> LlamaConfig:
    return parse_config(LLAMA | fields, "config.json")


def without(name: str) -> dict[str, Any]:
    return {field: value for field, value in LLAMA.items() if field != name}


def test_every_field_finds_its_place() -> None:
    assert parsed(head_dim=32, tie_word_embeddings=True, attention_bias=True, mlp_bias=True) == LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        layers=3,
        heads=4,
        kv_heads=2,
        head_dim=32,
        norm_eps=1e-5,
        rope=RopeScaling(500000.0),
        max_positions=2048,
        tied_head=True,
        attention_bias=True,
        mlp_bias=True,
        qk_norm=False,
    )


def test_what_is_left_out_is_what_stock_takes() -> None:
    config = parse_config(without("num_key_value_heads"), "config.json")
    assert (config.head_dim, config.kv_heads) == (16, 4)
    assert (config.tied_head, config.attention_bias, config.mlp_bias) == (False, False, False)
    assert parse_config(without("rope_theta"), "config.json").rope == RopeScaling(10000.0)
    assert parsed(head_dim=None, num_key_value_heads=None, rope_scaling=None, layer_types=None).kv_heads == 4


def test_qwen3_normalises_queries_and_keys() -> None:
    assert parsed(architectures=["Qwen3ForCausalLM"]).qk_norm


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeScaling(500000.0, "linear", 2.0)),
        (
            {"rope_scaling": LLAMA3},
            RopeScaling(500000.0, "llama3", 8.0, 1.0, 4.0, 8192),
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, RopeScaling(7.0)),
        (
            {"rope_theta": None, "rope_parameters": {**LLAMA3, "rope_theta": 9.0}},
            RopeScaling(9.0, "llama3", 8.0, 1.0, 4.0, 8192),
        ),
        ({"rope_parameters": {"rope_theta": 7.0, "partial_rotary_factor": None}}, RopeScaling(7.0)),
        ({"partial_rotary_factor": 1.0}, RopeScaling(500000.0)),
    ],
    ids=["old linear", "old llama3", "new default", "new llama3", "null", "whole heads"],
)
def test_both_ways_to_write_the_rotation_are_read(fields: dict[str, Any], wanted: RopeScaling) -> None:
    assert parsed(**fields).rope == wanted


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_what_stock_writes_is_read(tmp_path: Path, family: str) -> None:
    config = read_config(write_model(tmp_path, family, tie_word_embeddings=True))
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (3, 4, 2, 16)
    assert (config.tied_head, config.qk_norm) == (True, family == "qwen3")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "`architectures` is ['MistralForCausalLM']"),
        ({"architectures": None}, "this engine runs LlamaForCausalLM, Qwen3ForCausalLM"),
        ({"architectures": "LlamaForCausalLM"}, "`architectures` is 'LlamaForCausalLM'"),
        ({"architectures": [{}]}, "`architectures` is [{}]"),
        ({"architectures": ["LlamaForCausalLM"] * 2}, "`architectures`"),
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "`quantization_config` is present"),
        ({"compression_config": {"format": "x"}}, "`compression_config` is present"),
        ({"use_sliding_window": True}, "`use_sliding_window` is true"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "`layer_types` is"),
        ({"layer_types": "full_attention"}, "`layer_types` is 'full_attention'"),
        ({"num_key_value_heads": 3}, "`num_attention_heads` = 4 is no multiple of `num_key_value_heads` = 3"),
        ({"head_dim": 15}, "`head_dim` = 15 is odd"),
        ({"rms_norm_eps": 0}, "`rms_norm_eps` must be a positive number, got 0"),
        ({"rms_norm_eps": float("nan")}, "`rms_norm_eps` must be a positive number, got nan"),
        ({"rms_norm_eps": True}, "`rms_norm_eps`"),
        ({"rms_norm_eps": "1e-5"}, "`rms_norm_eps` must be a positive number, got '1e-5'"),
        ({"vocab_size": 0}, "`vocab_size` must be a positive integer, got 0"),
        ({"vocab_size": 320.0}, "`vocab_size` must be a positive integer, got 320.0"),
        ({"num_hidden_layers": True}, "`num_hidden_layers` must be a positive integer, got True"),
        ({"tie_word_embeddings": "false"}, "`tie_word_embeddings` must be true or false, got 'false'"),
        ({"attention_bias": 1}, "`attention_bias` must be true or false, got 1"),
        ({"mlp_bias": []}, "`mlp_bias` must be true or false"),
        ({"rope_theta": -1.0}, "`rope_theta` must be a positive number, got -1.0"),
        ({"rope_theta": float("inf")}, "`rope_theta` must be a positive number, got inf"),
        ({"rope_theta": "1e6"}, "`rope_theta` must be a positive number, got '1e6'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "`rope_scaling`: `rope_type` is 'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "`rope_type` is 'dynamic'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "`rope_scaling`: `factor` must be a positive number"),
        ({"rope_scaling": [1]}, "`rope_scaling` must be one flat object"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "`rope_parameters` must be one flat"),
        ({"rope_parameters": {**LLAMA3, "factor": None}}, "`rope_parameters`: `factor` must be a positive"),
        ({"rope_parameters": {**LLAMA3, "low_freq_factor": 4}}, "`low_freq_factor` = 4.0 must be below"),
        (
            {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": None}},
            "`original_max_position_embeddings` must be a positive integer",
        ),
        ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor` is not 1"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "`partial_rotary_factor` is not 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_this_target_is_not_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TargetError, match="^config.json: .*" + re.escape(message)):
        parsed(**fields)


@pytest.mark.parametrize(
    "name",
    sorted(set(LLAMA) - {"architectures", "hidden_act", "num_key_value_heads", "rope_theta"}),
)
def test_a_size_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(TargetError, match=f"`{name}` must be a positive .*, got None"):
        parse_config(without(name), "config.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read .*config.json: No such file or directory; give a complete model folder"),
        (b"{", "config.json is not JSON"),
        (b"\xff\xfe{}", "config.json is not JSON"),
        (b"[1]", "config.json must hold a JSON object"),
    ],
    ids=["missing", "cut", "not utf-8", "a list"],
)
def test_a_broken_file_is_named(tmp_path: Path, text: bytes | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(TargetError, match=message):
        read_config(tmp_path)


def test_a_refusal_names_the_file_and_is_a_mechanism_error(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"hidden_act": "relu"}))
    with pytest.raises(MechanismError, match=re.escape(str(path))):
        read_config(tmp_path)
    assert read_json(path)["hidden_act"] == "relu"
