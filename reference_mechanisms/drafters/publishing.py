"""Writes the config.json of a network in the published layout that describes it; `layouts.py` reads it back.

DFlash and DFlash 2 as z-lab publishes them, DSpark as DeepSpec does, EAGLE-3 as a speculators export: the
one EAGLE-3 layout whose readers agree how layers are counted. A head or an embedding that is not stored is
the target's, in all four. Where readers have different defaults the field is stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reference_mechanisms.drafters.blocks import Reach, Sizes
from reference_mechanisms.drafters.dflash import BlockConfig
from reference_mechanisms.drafters.dflash2 import DFlash2Config
from reference_mechanisms.drafters.dspark import DSparkConfig
from reference_mechanisms.drafters.eagle3 import Eagle3Config
from reference_mechanisms.drafters.layouts import DEEPSPEC_BLOCK, DFLASH, DFLASH2, Config
from reference_mechanisms.drafters.rotation import Rope
from reference_mechanisms.drafters.taps import to_inputs
from reference_mechanisms.errors import DrafterError


def published(config: Config, positions: int) -> dict[str, Any]:
    """The config.json of a network.

    Args:
        config: of the network.
        positions: of the longest sequence, for readers that size their tables by it.

    Raises:
        DrafterError: no published layout describes such a network.
    """
    if isinstance(config, Eagle3Config):
        return _eagle3(config, positions)
    layer = _layer(config.sizes, config.rope, config.vocab_size, positions) | {
        "model_type": "qwen3",
        "num_hidden_layers": len(config.reaches),
        **_attention(config.reaches),
        **_target(config),
    }
    if isinstance(config, DSparkConfig):
        return _dspark(config, layer)
    if config.anchor_row:
        return layer | _block(config) | {"architectures": [DEEPSPEC_BLOCK], "markov_rank": 0}
    nested: dict[str, Any] = _block(config)
    if "is_causal" in layer:
        nested["causal"] = layer["is_causal"]  # the one switch of some readers
    if isinstance(config, DFlash2Config):
        nested |= {
            "conv_kernel_size": config.kernel,
            "conv_group_size": config.group,
            "selector_rank": config.selector_rank,
            "selector_top_k": config.candidates,
        }
        return layer | {"architectures": [DFLASH2], "dflash_config": nested}
    return layer | {"architectures": [DFLASH], "block_size": config.block, "dflash_config": nested}


def _dspark(config: DSparkConfig, layer: dict[str, Any]) -> dict[str, Any]:
    if not config.anchor_row:
        raise DrafterError("a DSpark whose anchor row predicts nothing has no layout of its own; train one")
    return (
        layer
        | _block(config)
        | {
            "architectures": [DEEPSPEC_BLOCK],
            "markov_rank": config.markov_rank,
            "markov_head_type": config.markov_kind,
            "enable_confidence_head": config.confidence,
            "confidence_head_with_markov": config.confidence_with_markov,
            "eagle_config": {"target_layer_ids": list(config.taps)},  # vLLM 0.25 counts a tap a layer without
        }
    )


def _eagle3(config: Eagle3Config, positions: int) -> dict[str, Any]:
    layer = _layer(config.sizes, config.rope, config.vocab_size, positions) | {
        "model_type": "qwen3" if config.sizes.qk_norm else "llama",
        "num_hidden_layers": config.layers,
        "num_aux_hidden_states": config.features,  # vLLM's Llama type counts three where this is missing
    }
    found: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {  # where there is none, vLLM does not see that this is such an export
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.drafts}],
            "verifier": {"name_or_path": "", "architectures": []},
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.norm_each_tap,
        "norm_output": config.norm_output,
        **_target(config),
    }
    if config.taps is not None:
        found["eagle_aux_hidden_state_layer_ids"] = list(to_inputs(config.taps))
    return found


def _layer(sizes: Sizes, rope: Rope, vocab_size: int, positions: int) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.inner,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "rms_norm_eps": sizes.norm_eps,
        "attention_bias": sizes.attention_bias,
        "mlp_bias": False,
        "vocab_size": vocab_size,
        "max_position_embeddings": positions,
        "rope_theta": rope.scaling.theta,
        "rope_parameters": _rope(rope),
        "tie_word_embeddings": False,
    }


def _rope(rope: Rope) -> dict[str, Any]:
    scaling, yarn = rope
    found: dict[str, Any] = {"rope_type": scaling.kind, "rope_theta": scaling.theta}
    if yarn is not None:
        found |= {
            "rope_type": "yarn",
            "factor": yarn.factor,
            "original_max_position_embeddings": yarn.original_positions,
            "beta_fast": yarn.beta_fast,
            "beta_slow": yarn.beta_slow,
        }
        return found if yarn.attention_factor is None else found | {"attention_factor": yarn.attention_factor}
    if scaling.kind == "linear":
        return found | {"factor": scaling.factor}
    if scaling.kind == "llama3":
        return found | {
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_positions,
        }
    return found


def _attention(reaches: Sequence[Reach]) -> dict[str, Any]:
    windows = {reach.window for reach in reaches} - {None}
    if len(windows) > 1:
        raise DrafterError(f"layers have windows {sorted(map(str, windows))}; a config.json holds one")
    found: dict[str, Any] = {
        "layer_types": ["full_attention" if one.window is None else "sliding_attention" for one in reaches],
        "sliding_window": next(iter(windows), None),
        "use_sliding_window": bool(windows),
    }
    causal = {reach.causal for reach in reaches}
    if len(causal) == 1:
        return found | {"is_causal": causal.pop()}
    if any(reach.causal != (reach.window is not None) for reach in reaches):
        raise DrafterError("some layers are causal, and not just those with a window; no config.json says so")
    return found


def _target(config: BlockConfig | Eagle3Config) -> dict[str, Any]:
    found: dict[str, Any] = {"target_hidden_size": config.target_hidden}
    if config.target_layers is not None:
        found["num_target_layers"] = config.target_layers
    if isinstance(config, BlockConfig) and config.draft_vocab_size is not None:
        found["draft_vocab_size"] = config.draft_vocab_size
    return found


def _block(config: BlockConfig) -> dict[str, Any]:
    return {
        "block_size": config.block,
        "mask_token_id": config.mask_token,
        "target_layer_ids": list(config.taps),
    }
