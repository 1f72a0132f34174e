"""What each engine is started with: dummy weights in the shape of Qwen3-8B and of a DFlash drafter for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reference_mechanisms.weight12.plugin.step_times.steps import DFLASH, PACKED

SHAPES = Path(__file__).parent / "shapes"
MODEL, DRAFTER = SHAPES / "qwen3-8b", SHAPES / "qwen3-8b-dflash"
DRAFTS = 15  # k: with the bonus token a verify step takes 16 tokens of each prompt
ACCEPTANCE_LENGTH = 6.5  # synthetic: random weights accept nothing
MAX_BATCH = 64
LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64)  # running prompts that get a CUDA graph
KV_CACHE_BYTES = 6 << 30  # 64 prompts of 600 tokens, the drafter's layers too

# Of an engine's process. The flashinfer sampler would be compiled at start, which needs a CUDA toolkit.
ENVIRONMENT: Mapping[str, str] = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_PLUGINS": "weight12",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a function of ours counts the packed layers
    "HF_HUB_OFFLINE": "1",
}


def engine_arguments(kind: str, mode: str, batches: Sequence[int]) -> dict[str, Any]:
    """Arguments of `vllm.LLM`.

    `gpu_memory_utilization` is only what vLLM wants to find free at the start; the cache's size is given.
    That lets engines share a GPU.

    Args:
        kind: `bf16` or `weight12`.
        mode: `ar` or `dflash`.
        batches: prompts at once that will be timed.
    """
    tokens = 1 + DRAFTS if mode == DFLASH else 1
    running = sorted({*batches, *(size for size in LADDER if size < max(batches))})
    found: dict[str, Any] = {
        "model": str(MODEL),
        "load_format": "dummy",
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "max_model_len": 2048,
        "max_num_seqs": max(batches),
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": False,
        "disable_log_stats": False,  # the drafts are counted there
        "seed": 0,
        "gpu_memory_utilization": 0.2,
        "kv_cache_memory_bytes": KV_CACHE_BYTES,
        "compilation_config": {"cudagraph_capture_sizes": [tokens * size for size in running]},
    }
    if kind == PACKED:
        found["quantization"] = PACKED
    if mode == DFLASH:
        found["speculative_config"] = {
            "method": "dflash",
            "model": str(DRAFTER),
            "num_speculative_tokens": DRAFTS,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": ACCEPTANCE_LENGTH,
        }
    return found
