"""config.json contents of the published layouts: full size for counts, and small ones to write to disk."""

from __future__ import annotations

from typing import Any

QWEN3_8B: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "attention_bias": False,
    "vocab_size": 151936,
    "num_target_layers": 36,
    "layer_types": ["full_attention"] * 5,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
}
ZLAB_8B = QWEN3_8B | {
    "architectures": ["DFlashDraftModel"],
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}
ZLAB_8B_NESTED = {k: v for k, v in ZLAB_8B.items() if k != "block_size"} | {
    "dflash_config": {**ZLAB_8B["dflash_config"], "block_size": 16}
}
ZLAB_4B = ZLAB_8B | {"hidden_size": 2560, "intermediate_size": 9728}
QWEN38_27B = QWEN3_8B | {
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "vocab_size": 248320,
    "rope_theta": 10000000,
    "num_target_layers": 64,
}
DFLASH2_27B = QWEN38_27B | {
    "architectures": ["DFlash2DraftModel"],
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "is_causal": False,
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": 248070,
        "target_layer_ids": [5, 19, 33, 47, 61],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    },
}
HEADS = {
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
DEEPSPEC_8B = (
    QWEN3_8B
    | HEADS
    | {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": 7,
        "mask_token_id": 151669,
        "target_layer_ids": [1, 9, 17, 25, 33],
        "num_anchors": 512,
    }
)
DEEPSPEC_DFLASH_8B = DEEPSPEC_8B | {"markov_rank": 0, "enable_confidence_head": False}
RADIXARK_27B = QWEN38_27B | {
    "architectures": ["DSparkDraftModel"],
    "block_size": 7,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 8192},
    "dflash_config": {
        "projector_type": "dspark",
        "attention_mode": "gqa",
        "mask_token_id": 248070,
        "target_layer_ids": [5, 19, 33, 47, 61],
        "training_block_size": 16,
        **HEADS,
    },
}
SAFEAI_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
}
LAYER: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": 40,
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": 6,
}
EAGLE_LAYER = {k: v for k, v in LAYER.items() if k not in ("layer_types", "sliding_window")} | {
    "num_hidden_layers": 1
}
SMALL_HEADS = HEADS | {"markov_rank": 4}
BLOCK = {"mask_token_id": 39, "target_layer_ids": [0, 2]}
SPECULATORS_BLOCK: dict[str, Any] = {
    "transformer_layer_config": LAYER | {"model_type": "qwen3"},
    "block_size": 4,
    "mask_token_id": 39,
    "aux_hidden_state_layer_ids": [1, 3],
    "draft_vocab_size": 10,
}
SMALL: dict[str, dict[str, Any]] = {
    "z-lab dflash": LAYER | {"architectures": ["DFlashDraftModel"], "block_size": 4, "dflash_config": BLOCK},
    "z-lab dflash2": LAYER
    | {
        "architectures": ["DFlash2DraftModel"],
        "is_causal": False,
        "dflash_config": {
            **BLOCK,
            "block_size": 4,
            "conv_kernel_size": 2,
            "conv_group_size": 4,
            "selector_rank": 3,
            "selector_top_k": 5,
        },
    },
    "deepspec dspark": LAYER | SMALL_HEADS | BLOCK | {"architectures": ["Qwen3DSparkModel"], "block_size": 3},
    "deepspec dflash": LAYER
    | BLOCK
    | {"architectures": ["Qwen3DSparkModel"], "block_size": 3, "markov_rank": 0},
    "specforge dspark": LAYER
    | {
        "architectures": ["DSparkDraftModel"],
        "block_size": 3,
        "dflash_config": {**BLOCK, **SMALL_HEADS, "projector_type": "dspark"},
    },
    "speculators dflash": SPECULATORS_BLOCK | {"speculators_model_type": "dflash"},
    "speculators dspark": SPECULATORS_BLOCK
    | SMALL_HEADS
    | {"speculators_model_type": "dspark", "sample_from_anchor": True},
    "safeai eagle3": EAGLE_LAYER | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 10},
    "deepspec eagle3": EAGLE_LAYER
    | {"architectures": ["Qwen3Eagle3Model"], "target_layer_ids": [0, 2], "ttt_length": 5},
    "speculators eagle3": {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": EAGLE_LAYER | {"model_type": "llama"},
        "draft_vocab_size": 10,
        "norm_before_residual": True,
        "norm_before_fc": True,
        "norm_output": True,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    },
}
