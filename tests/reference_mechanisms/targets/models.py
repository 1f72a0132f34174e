"""Random models written to a folder as Hugging Face writes them, and stock to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.targets.llama import LlamaTarget

CPU = torch.device("cpu")
VOCAB = 61
FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}


def write_model(folder: Path, family: str = "llama", shard: str = "1GB", **fields: Any) -> Path:
    """A float32 checkpoint; every tensor is random, norms and biases too, so that none can be left out."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    config_class, model_class = FAMILIES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = model_class(config_class(**sizes | fields))
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if tensor.ndim == 1:
                    tensor.copy_(torch.randn_like(tensor) * 0.3 + ("norm" in name))
    model.save_pretrained(folder, max_shard_size=shard)
    return folder


def stock_model(folder: Path, dtype: torch.dtype = torch.float64) -> Any:
    """Stock with torch's attention: its eager one rounds the softmax to float32 even in float64."""
    family = FAMILIES["qwen3" if "Qwen3" in (folder / "config.json").read_text() else "llama"][1]
    return family.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()


def random_ids(count: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    made = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (count,), generator=made).tolist()


def pack(*parts: tuple[int, int, Sequence[int]]) -> Rows:
    """Rows of several requests: (slot, start, token ids) each."""
    return Rows(
        token_ids=[token for _, _, ids in parts for token in ids],
        positions=[start + n for _, start, ids in parts for n in range(len(ids))],
        segments=[Segment(slot, start, len(ids)) for slot, start, ids in parts],
    )


def run(target: LlamaTarget, cache: KVCache, *parts: tuple[int, int, Sequence[int]]) -> Tensor:
    """Logits of every row; nothing is committed."""
    return target.logits(target.forward(pack(*parts), cache).hidden)


def fill_with_garbage(cache: KVCache, seed: int, scale: float = 100.0) -> None:
    """Large finite numbers in every position of every slot."""
    made = torch.Generator().manual_seed(seed)
    for slot in range(cache.slots):
        for layer in cache.window(slot, 0, cache.capacity):
            layer.copy_(torch.randn(layer.shape, generator=made) * scale)
