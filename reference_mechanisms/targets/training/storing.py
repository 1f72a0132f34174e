"""Writes a trained hybrid target as a Hugging Face folder, and reads it back for training its drafters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from reference_mechanisms.targets.checkpoint import Checkpoint
from reference_mechanisms.targets.hybrid_config import HybridConfig, read_hybrid_config
from reference_mechanisms.targets.training.network import HybridNetwork
from reference_mechanisms.targets.training.vocabulary import BEGIN_ID, END_ID

WEIGHTS = "model.safetensors"
PREFIX = "model."


def described(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a network of Qwen3-Next's layout with dense layers only.

    Args:
        sizes: fields of it that are the plan's to choose, by their names there.
    """
    layers = sizes["num_hidden_layers"]
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "layer_types": [
            "full_attention" if (layer + 1) % 4 == 0 else "linear_attention" for layer in range(layers)
        ],
        "num_experts": 0,
        "num_experts_per_tok": 1,
        "mlp_only_layers": list(range(layers)),
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 1,
        "shared_expert_intermediate_size": 1,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "bos_token_id": BEGIN_ID,
        "eos_token_id": END_ID,
        "dtype": "bfloat16",
        **sizes,
    }


def store_target(network: HybridNetwork, raw: Mapping[str, Any], folder: Path) -> None:
    """Write config.json, generation_config.json and the weights in bfloat16."""
    tensors = {
        f"{PREFIX}{name}": weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in network.named_parameters()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(dict(raw), indent=1) + "\n", encoding="utf-8")
    told = {"bos_token_id": BEGIN_ID, "eos_token_id": END_ID}
    (folder / "generation_config.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def load_network(folder: Path, dtype: torch.dtype, device: torch.device) -> HybridNetwork:
    """A stored target as the batched network, without gradients.

    Raises:
        TargetError: the folder is no complete checkpoint of this layout.
    """
    config: HybridConfig = read_hybrid_config(folder)
    network = HybridNetwork(config, 0)
    with torch.no_grad(), Checkpoint(folder) as checkpoint:
        for name, weight in network.named_parameters():
            weight.copy_(checkpoint.take(f"{PREFIX}{name}", tuple(weight.shape), torch.float32))
        checkpoint.refuse_unused(())
    return network.requires_grad_(False).to(device, dtype).eval()
