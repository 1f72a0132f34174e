"""What a hybrid target is: Gated DeltaNet layers with full attention between, from a config.json.

Layouts: Qwen3-Next (`Qwen3NextForCausalLM`, dense layers only) and Qwen3.5 (`Qwen3_5ForCausalLM`, and the
text part of `Qwen3_5ForConditionalGeneration`), as Hugging Face Transformers writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.config import ARCHITECTURES, read_json
from reference_mechanisms.targets.fields import (
    architecture,
    count,
    number,
    refuse_other_weights,
    rope,
    rotated_part,
    switch,
)
from reference_mechanisms.targets.gated_delta import DeltaSizes
from reference_mechanisms.targets.rope import RopeScaling

LayerKind = Literal["linear_attention", "full_attention"]
KINDS: tuple[LayerKind, ...] = get_args(LayerKind)

ROTATED = 0.25  # of a head, if `partial_rotary_factor` is left out
INTERVAL = 4  # of full attention, if neither `layer_types` nor `full_attention_interval` is there
EXPERTS = 512  # of Qwen3-Next, if `num_experts` is left out
MTP = "mtp."  # the built-in drafter of these checkpoints; no part of the target


class Layout(NamedTuple):
    """Where a checkpoint keeps things."""

    packed: bool  # input projections interleaved by key head: `in_proj_qkvz` and `in_proj_ba`
    experts: bool  # the architecture has a mixture of experts, which this target has not
    nested: str | None  # field of config.json that holds the text model
    prefix: str  # of the decoder's tensors
    others: tuple[str, ...]  # beginnings of tensors that are no part of the target


HYBRIDS: Mapping[str, Layout] = {
    "Qwen3NextForCausalLM": Layout(packed=True, experts=True, nested=None, prefix="model.", others=(MTP,)),
    "Qwen3_5ForCausalLM": Layout(packed=False, experts=False, nested=None, prefix="model.", others=(MTP,)),
    "Qwen3_5ForConditionalGeneration": Layout(
        packed=False,
        experts=False,
        nested="text_config",
        prefix="model.language_model.",
        others=(MTP, "model.visual."),
    ),
}
RUNS = ", ".join(sorted((*ARCHITECTURES, *HYBRIDS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridConfig:
    """Sizes and switches of the model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    kinds: tuple[LayerKind, ...]  # of every layer, `layer_types`
    heads: int  # of full attention
    kv_heads: int
    head_dim: int
    rotary_dim: int  # leading part of a head that is rotated
    delta: DeltaSizes  # of the linear layers
    norm_eps: float
    rope: RopeScaling
    max_positions: int
    tied_head: bool
    attention_bias: bool  # on q, k, v and o
    layout: Layout

    @property
    def layers(self) -> int:
        """Of both kinds."""
        return len(self.kinds)


def read_hybrid_config(folder: Path) -> HybridConfig:
    """Read `folder`/config.json.

    Raises:
        TargetError: the file or a field is missing, or describes something this target is not.
    """
    return parse_hybrid_config(read_json(folder / "config.json"), str(folder / "config.json"))


def parse_hybrid_config(raw: Mapping[str, Any], where: str) -> HybridConfig:
    """Turn the fields of a config.json into a `HybridConfig`.

    Raises:
        TargetError: naming `where` and the field.
    """
    layout = HYBRIDS[architecture(raw, HYBRIDS, RUNS, where)]
    refuse_other_weights(raw, where)
    tied = switch(raw, "tie_word_embeddings", where)
    if layout.nested is not None:
        text = raw.get(layout.nested)
        if not isinstance(text, dict):
            raise TargetError(f"{where}: `{layout.nested}` must be an object, got {text!r}")
        raw, where = text, f"{where}: `{layout.nested}`"
    _refuse_what_changes_the_model(raw, layout, where)
    heads, kv_heads = count(raw, "num_attention_heads", where), count(raw, "num_key_value_heads", where)
    if heads % kv_heads:
        raise TargetError(
            f"{where}: `num_attention_heads` = {heads} is no multiple of `num_key_value_heads` = {kv_heads}"
        )
    head_dim = count(raw, "head_dim", where)
    rotary_dim = int(head_dim * rotated_part(raw, ROTATED, where))
    if rotary_dim < 2 or rotary_dim % 2:
        raise TargetError(
            f"{where}: `partial_rotary_factor` of `head_dim` = {head_dim} rotates {rotary_dim} numbers; "
            "rotary embedding needs pairs"
        )
    return HybridConfig(
        vocab_size=count(raw, "vocab_size", where),
        hidden_size=count(raw, "hidden_size", where),
        intermediate_size=count(raw, "intermediate_size", where),
        kinds=_kinds(raw, where),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        delta=_delta(raw, where),
        norm_eps=number(raw, "rms_norm_eps", where),
        rope=rope(raw, where),
        max_positions=count(raw, "max_position_embeddings", where),
        tied_head=tied,
        attention_bias=switch(raw, "attention_bias", where),
        layout=layout,
    )


def _delta(raw: Mapping[str, Any], where: str) -> DeltaSizes:
    sizes = DeltaSizes(
        key_heads=count(raw, "linear_num_key_heads", where),
        value_heads=count(raw, "linear_num_value_heads", where),
        key_dim=count(raw, "linear_key_head_dim", where),
        value_dim=count(raw, "linear_value_head_dim", where),
        kernel=count(raw, "linear_conv_kernel_dim", where),
    )
    if sizes.value_heads % sizes.key_heads:
        raise TargetError(
            f"{where}: `linear_num_value_heads` = {sizes.value_heads} is no multiple of "
            f"`linear_num_key_heads` = {sizes.key_heads}"
        )
    return sizes


def _kinds(raw: Mapping[str, Any], where: str) -> tuple[LayerKind, ...]:
    layers, given = count(raw, "num_hidden_layers", where), raw.get("layer_types")
    if given is None:
        interval = count(raw, "full_attention_interval", where, default=INTERVAL)
        return tuple(KINDS[(layer + 1) % interval == 0] for layer in range(layers))
    found = tuple(kind for name in given for kind in KINDS if kind == name) if isinstance(given, list) else ()
    if len(found) != layers or len(given) != layers:
        raise TargetError(
            f"{where}: `layer_types` is {given!r}; give {' or '.join(KINDS)} for each of "
            f"`num_hidden_layers` = {layers}"
        )
    return found


def _refuse_what_changes_the_model(raw: Mapping[str, Any], layout: Layout, where: str) -> None:
    refuse_other_weights(raw, where)
    if raw.get("attn_output_gate") is False:
        raise TargetError(f"{where}: `attn_output_gate` is false; this target has gated attention only")
    state = raw.get("mamba_ssm_dtype", "float32")
    if state != "float32":
        raise TargetError(f"{where}: `mamba_ssm_dtype` is {state!r}; this target's states are float32")
    if not layout.experts:
        return
    layers, experts = count(raw, "num_hidden_layers", where), raw.get("num_experts", EXPERTS)
    step = count(raw, "decoder_sparse_step", where, default=1)
    dense = raw.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise TargetError(f"{where}: `mlp_only_layers` must be a list of layers, got {dense!r}")
    routed = [layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0]
    if experts != 0 and routed:
        raise TargetError(
            f"{where}: `num_experts` is {experts!r} and layer {routed[0]} is not in `mlp_only_layers`; this "
            "target has dense layers only, no mixture of experts"
        )
