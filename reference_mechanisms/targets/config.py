"""What a dense Llama-type model is, read from the config.json of a Hugging Face folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.rope import RopeScaling

# Architecture string -> whether queries and keys are normalised per head.
ARCHITECTURES: Mapping[str, bool] = {"LlamaForCausalLM": False, "Qwen3ForCausalLM": True}

# Where exporters write that the stored tensors are not the weights.
QUANTISED = ("quantization_config", "compression_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes and switches of the model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeScaling
    max_positions: int
    tied_head: bool
    attention_bias: bool  # on q, k, v and o
    mlp_bias: bool
    qk_norm: bool


def read_config(folder: Path) -> LlamaConfig:
    """Read `folder`/config.json.

    Raises:
        TargetError: the file or a field is missing, or describes something this target is not.
    """
    return parse_config(read_json(folder / "config.json"), str(folder / "config.json"))


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object from a file of a model folder.

    Raises:
        TargetError: naming the file.
    """
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise TargetError(f"cannot read {path}: {error.strerror}; give a complete model folder") from None
    except ValueError as error:
        raise TargetError(f"{path} is not JSON: {error}; download it again") from None
    if not isinstance(found, dict):
        raise TargetError(f"{path} must hold a JSON object; download it again")
    return found


def parse_config(raw: Mapping[str, Any], where: str) -> LlamaConfig:
    """Turn the fields of a config.json into a `LlamaConfig`.

    Raises:
        TargetError: naming `where` and the field.
    """
    qk_norm = ARCHITECTURES[_architecture(raw, where)]
    _refuse_what_changes_the_model(raw, where)
    heads, hidden = _count(raw, "num_attention_heads", where), _count(raw, "hidden_size", where)
    kv_heads = _count(raw, "num_key_value_heads", where, default=heads)
    head_dim = _count(raw, "head_dim", where, default=max(1, hidden // heads))
    if heads % kv_heads:
        raise TargetError(
            f"{where}: `num_attention_heads` = {heads} is no multiple of `num_key_value_heads` = {kv_heads}"
        )
    if head_dim % 2:
        raise TargetError(f"{where}: `head_dim` = {head_dim} is odd; rotary embedding needs pairs")
    return LlamaConfig(
        vocab_size=_count(raw, "vocab_size", where),
        hidden_size=hidden,
        intermediate_size=_count(raw, "intermediate_size", where),
        layers=_count(raw, "num_hidden_layers", where),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=_number(raw, "rms_norm_eps", where),
        rope=_rope(raw, where),
        max_positions=_count(raw, "max_position_embeddings", where),
        tied_head=_switch(raw, "tie_word_embeddings", where),
        attention_bias=_switch(raw, "attention_bias", where),
        mlp_bias=_switch(raw, "mlp_bias", where),
        qk_norm=qk_norm,
    )


def _architecture(raw: Mapping[str, Any], where: str) -> str:
    named = raw.get("architectures") or []
    if not isinstance(named, list) or len(named) != 1 or str(named[0]) not in ARCHITECTURES:
        raise TargetError(
            f"{where}: `architectures` is {named!r}; this engine runs {', '.join(sorted(ARCHITECTURES))}"
        )
    return str(named[0])


def _refuse_what_changes_the_model(raw: Mapping[str, Any], where: str) -> None:
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise TargetError(f"{where}: `hidden_act` is {activation!r}; this engine knows 'silu'")
    quantised = next((name for name in QUANTISED if raw.get(name) is not None), None)
    if quantised is not None:
        raise TargetError(f"{where}: `{quantised}` is present; give an unquantised checkpoint")
    if _switch(raw, "use_sliding_window", where):
        raise TargetError(f"{where}: `use_sliding_window` is true; this engine has full attention only")
    kinds = raw.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)):
        raise TargetError(f"{where}: `layer_types` is {kinds!r}; this engine has full_attention only")


def _rope(raw: Mapping[str, Any], where: str) -> RopeScaling:
    field = "rope_parameters" if raw.get("rope_parameters") is not None else "rope_scaling"
    given = raw.get(field) or {}
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise TargetError(f"{where}: `{field}` must be one flat object for all layers, got {given!r}")
    theta = _number({"rope_theta": 10000.0, **_present(raw), **_present(given)}, "rope_theta", where)
    at = f"{where}: `{field}`"
    for holder in (raw, given):
        if holder.get("partial_rotary_factor") not in (None, 1):
            raise TargetError(f"{where}: `partial_rotary_factor` is not 1; this engine rotates whole heads")
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind == "default":
        return RopeScaling(theta)
    if kind == "linear":
        return RopeScaling(theta, "linear", factor=_number(given, "factor", at))
    if kind == "llama3":
        low, high = _number(given, "low_freq_factor", at), _number(given, "high_freq_factor", at)
        if low >= high:
            raise TargetError(f"{at}: `low_freq_factor` = {low} must be below `high_freq_factor` = {high}")
        return RopeScaling(
            theta,
            "llama3",
            factor=_number(given, "factor", at),
            low_freq_factor=low,
            high_freq_factor=high,
            original_positions=_count(given, "original_max_position_embeddings", at),
        )
    raise TargetError(f"{at}: `rope_type` is {kind!r}; this engine knows default, linear, llama3")


def _count(raw: Mapping[str, Any], field: str, where: str, default: int | None = None) -> int:
    value = raw.get(field)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TargetError(f"{where}: `{field}` must be a positive integer, got {value!r}")
    return value


def _number(raw: Mapping[str, Any], field: str, where: str) -> float:
    value = raw.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise TargetError(f"{where}: `{field}` must be a positive number, got {value!r}")
    return float(value)


def _switch(raw: Mapping[str, Any], field: str, where: str) -> bool:
    value = raw.get(field, False)
    if not isinstance(value, bool):
        raise TargetError(f"{where}: `{field}` must be true or false, got {value!r}")
    return value


def _present(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if value is not None}
