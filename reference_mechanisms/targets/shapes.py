"""Published sizes of targets, as their config.json states them: for engines timed with dummy weights.

Sources: config.json of Qwen/Qwen3-4B, Qwen/Qwen3-8B, Qwen/Qwen3-14B and meta-llama/Llama-3.1-8B; of hybrids
the text model of Qwen/Qwen3.5-9B and Qwen/Qwen3.5-27B.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.config import LlamaConfig, parse_config
from reference_mechanisms.targets.hybrid_config import HybridConfig, parse_hybrid_config

_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "max_position_embeddings": 40960,
    "attention_bias": False,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "Qwen3-4B": _QWEN3
    | {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": True,
    },
    "Qwen3-8B": _QWEN3
    | {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "Qwen3-14B": _QWEN3
    | {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "tie_word_embeddings": False,
    },
    "Llama-3.1-8B": {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "max_position_embeddings": 131072,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
}

_QWEN3_5: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": 248320,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_value_head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
    "max_position_embeddings": 262144,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
HYBRID_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "Qwen3.5-9B": _QWEN3_5
    | {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "linear_num_value_heads": 32,
    },
    "Qwen3.5-27B": _QWEN3_5
    | {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "linear_num_value_heads": 48,
    },
}


def shape_config(name: str) -> LlamaConfig:
    """The sizes of a published target.

    Raises:
        TargetError: naming the known ones.
    """
    if name not in SHAPES:
        raise TargetError(f"no shape {name!r} is known; take one of {', '.join(SHAPES)}")
    return parse_config(SHAPES[name], f"shape {name}")


def hybrid_shape_config(name: str) -> HybridConfig:
    """The sizes of a published hybrid target.

    Raises:
        TargetError: naming the known ones.
    """
    if name not in HYBRID_SHAPES:
        raise TargetError(f"no hybrid shape {name!r} is known; take one of {', '.join(HYBRID_SHAPES)}")
    return parse_hybrid_config(HYBRID_SHAPES[name], f"shape {name}")
