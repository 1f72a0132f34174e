"""Random hybrid models written to a folder as Hugging Face writes them, and stock to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.hybrid_cache import HybridCache
from tests.reference_mechanisms.targets.models import VOCAB

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,  # no multiple of a vector register's width, nor equal to the other
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 512,
    # What stock begins training from. Wider ones blow rounding up from layer to layer: at 0.08 stock's own
    # steps and prefill differ by 4e-6 of the largest logit, at 0.02 by 5e-7.
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}
PREFIXES = {"qwen3_next": "model.", "qwen3_5": "model.", "qwen3_5_vision": "model.language_model."}


def write_hybrid(folder: Path, family: str = "qwen3_next", shard: str = "1GB", **fields: Any) -> Path:
    """A float32 checkpoint; every tensor is random, norms and decays too, so that none can be left out."""
    sizes = SIZES | fields
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model: Any
        if family == "qwen3_next":
            model = Qwen3NextForCausalLM(Qwen3NextConfig(**{"num_experts": 0} | sizes))
        elif family == "qwen3_5":
            model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**sizes))
        else:
            tied = {"tie_word_embeddings": sizes.get("tie_word_embeddings", False)}
            whole = Qwen3_5Config(text_config=sizes, vision_config=VISION, **tied)
            model = Qwen3_5ForConditionalGeneration(whole)
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if tensor.ndim == 1:
                    # A large bias would drown what the tokens say.
                    scale = 0.02 if name.endswith("_proj.bias") else 0.3
                    tensor.copy_(torch.randn_like(tensor) * scale + ("linear_attn.norm" in name))
    model.save_pretrained(folder, max_shard_size=shard)
    return folder


def stock_hybrid(folder: Path, dtype: torch.dtype) -> Any:
    """Stock with torch's attention; its recurrence is float32 whatever the type."""
    config = (folder / "config.json").read_text()
    family: Any = Qwen3_5ForConditionalGeneration if "Conditional" in config else Qwen3_5ForCausalLM
    if "Qwen3Next" in config:
        family = Qwen3NextForCausalLM
    return family.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()


@torch.inference_mode()
def stock_prefill(model: Any, ids: Sequence[int]) -> Tensor:
    """Logits [ids, vocabulary] of one forward: stock's chunked recurrence."""
    found: Tensor = model(torch.tensor([ids])).logits[0]
    return found


@torch.inference_mode()
def stock_steps(model: Any, ids: Sequence[int]) -> Tensor:
    """Logits [ids, vocabulary] of one-token steps over stock's cache, but the first: its own recurrence."""
    cache = DynamicCache(config=model.config.get_text_config())
    return torch.cat([model(torch.tensor([[token]]), cache=cache).logits[0] for token in ids])


def chain(cache: HybridCache, ids: Sequence[int], slot: int = 0) -> Rows:
    """Rows that continue a slot."""
    start = cache.length(slot)
    return Rows(ids, range(start, start + len(ids)), (Segment(slot, start, len(ids)),))


def verified(target: HybridTarget, cache: HybridCache, ids: Sequence[int], slot: int = 0) -> Tensor:
    """Logits of rows that continue a slot; nothing is committed."""
    return target.logits(target.forward(chain(cache, ids, slot), cache).hidden)


def in_pieces(target: HybridTarget, cache: HybridCache, ids: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Logits of all ids, each piece committed before the next."""
    found = []
    for size in sizes:
        start = cache.length(0)
        found.append(verified(target, cache, ids[start : start + size]))
        cache.commit(0, size)
    return torch.cat(found)


def states(cache: HybridCache, layers: int, slot: int = 0) -> list[Tensor]:
    """Every recurrent and convolution state of a slot, copied."""
    return [part.clone() for layer in range(layers) for part in cache.state(slot, layer)]


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether all tensors are bitwise equal."""
    return len(one) == len(other) and all(map(torch.equal, one, other))
