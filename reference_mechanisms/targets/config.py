"""What a dense Llama-type model is, read from the config.json of a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.fields import (
    architecture,
    count,
    number,
    refuse_other_weights,
    rope,
    rotated_part,
    switch,
)
from reference_mechanisms.targets.rope import RopeScaling

# Architecture string -> whether queries and keys are normalised per head.
ARCHITECTURES: Mapping[str, bool] = {"LlamaForCausalLM": False, "Qwen3ForCausalLM": True}


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
    except (ValueError, RecursionError) as error:
        raise TargetError(f"{path} is not JSON: {error}; download it again") from None
    if not isinstance(found, dict):
        raise TargetError(f"{path} must hold a JSON object; download it again")
    return found


def parse_config(raw: Mapping[str, Any], where: str) -> LlamaConfig:
    """Turn the fields of a config.json into a `LlamaConfig`.

    Raises:
        TargetError: naming `where` and the field.
    """
    qk_norm = ARCHITECTURES[architecture(raw, ARCHITECTURES, ", ".join(sorted(ARCHITECTURES)), where)]
    _refuse_what_changes_the_model(raw, where)
    heads, hidden = count(raw, "num_attention_heads", where), count(raw, "hidden_size", where)
    kv_heads = count(raw, "num_key_value_heads", where, default=heads)
    head_dim = count(raw, "head_dim", where, default=max(1, hidden // heads))
    if heads % kv_heads:
        raise TargetError(
            f"{where}: `num_attention_heads` = {heads} is no multiple of `num_key_value_heads` = {kv_heads}"
        )
    if head_dim % 2:
        raise TargetError(f"{where}: `head_dim` = {head_dim} is odd; rotary embedding needs pairs")
    return LlamaConfig(
        vocab_size=count(raw, "vocab_size", where),
        hidden_size=hidden,
        intermediate_size=count(raw, "intermediate_size", where),
        layers=count(raw, "num_hidden_layers", where),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=number(raw, "rms_norm_eps", where),
        rope=rope(raw, where),
        max_positions=count(raw, "max_position_embeddings", where),
        tied_head=switch(raw, "tie_word_embeddings", where),
        attention_bias=switch(raw, "attention_bias", where),
        mlp_bias=switch(raw, "mlp_bias", where),
        qk_norm=qk_norm,
    )


def _refuse_what_changes_the_model(raw: Mapping[str, Any], where: str) -> None:
    refuse_other_weights(raw, where)
    if switch(raw, "use_sliding_window", where):
        raise TargetError(f"{where}: `use_sliding_window` is true; this engine has full attention only")
    kinds = raw.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)):
        raise TargetError(f"{where}: `layer_types` is {kinds!r}; this engine has full_attention only")
    if rotated_part(raw, 1.0, where) != 1:
        raise TargetError(f"{where}: `partial_rotary_factor` is not 1; this engine rotates whole heads")
