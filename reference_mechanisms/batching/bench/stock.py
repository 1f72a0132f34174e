"""How vLLM is started: as released, and tuned to its loads; dummy weights, and the acceptance of traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reference_mechanisms.batching.bench.shapes import Shape
from reference_mechanisms.batching.traces.format import Trace, acceptance_rates
from reference_mechanisms.weight12.plugin.step_times.engine_arguments import LADDER

RELEASED = 15  # drafts of a step, as the drafter is released
BATCHED_TOKENS = 8192
SPARE = 1.25  # of the cache: its kinds of layers share pages of one size
BLOCKS = 32  # positions of blocks that are not full


def stock_arguments(
    shape: Shape,
    traces: Sequence[Trace],
    concurrencies: Sequence[int],
    drafts: int,
    *,
    released: bool = False,
) -> dict[str, Any]:
    """Arguments of `vllm.LLM`.

    Args:
        shape: of target and drafter.
        traces: whose acceptance is imposed: each position's rate, drawn anew at each step.
        concurrencies: requests at a time that will be asked for.
        drafts: of a step; 0: no drafter.
        released: as vLLM comes; else its full graphs are recorded at these loads, and it schedules ahead.
    """
    most = max(concurrencies)
    positions = max(trace.prompt + trace.tokens for trace in traces) + drafts + 1
    found: dict[str, Any] = {
        "model": str(shape.model),
        "load_format": "dummy",
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "max_model_len": positions + 16,
        "max_num_seqs": most,
        "max_num_batched_tokens": BATCHED_TOKENS,
        "enable_prefix_caching": False,
        "distributed_executor_backend": "uni",  # as of one GPU: the scheduler's process is the model's
        "disable_log_stats": False,  # the drafts are counted there
        "seed": 0,
        "gpu_memory_utilization": 0.2,  # wanted free at the start; the cache's size is given
        "kv_cache_memory_bytes": int(SPARE * most * shape.cache_bytes(positions + BLOCKS, drafts)),
    }
    if not released:
        running = sorted({*concurrencies, *(size for size in LADDER if size < most)})
        found["async_scheduling"] = True
        found["compilation_config"] = {
            "cudagraph_mode": "FULL_AND_PIECEWISE",
            "cudagraph_capture_sizes": [(1 + drafts) * size for size in running],
        }
    if drafts:
        found["speculative_config"] = {
            "method": "dflash",
            "model": str(shape.drafter),
            "num_speculative_tokens": drafts,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": list(acceptance_rates(traces, drafts)),
        }
    return found
