"""How vLLM is started: as released, and tuned to its loads; dummy weights, and the acceptance of traces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reference_mechanisms.batching.traces.format import Trace, acceptance_rates
from reference_mechanisms.errors import TargetError
from reference_mechanisms.weight12.plugin.step_times.engine_arguments import DRAFTER, LADDER, MODEL

RELEASED = 15  # drafts of a step, as the drafter is released
BATCHED_TOKENS = 8192
SPARE = 1.25  # of the cache: blocks are not full, and a step in flight has its own


class Shape(NamedTuple):
    """A target and its drafter, as both engines know them."""

    own: str  # published shape, `targets.shapes`
    model: Path  # vLLM's folder, a config.json
    drafter: Path


SHAPES: Mapping[str, Shape] = {"qwen3-8b": Shape("Qwen3-8B", MODEL, DRAFTER)}


def shape_of(name: str) -> Shape:
    """A shape by its name.

    Raises:
        TargetError: naming the known ones.
    """
    if name not in SHAPES:
        raise TargetError(f"--shape {name}: known are {', '.join(SHAPES)}")
    return SHAPES[name]


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
        "disable_log_stats": False,  # the drafts are counted there
        "seed": 0,
        "gpu_memory_utilization": 0.2,  # wanted free at the start; the cache's size is given
        "kv_cache_memory_bytes": int(SPARE * most * (positions + 32) * _cell_bytes(shape, drafts)),
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


def _cell_bytes(shape: Shape, drafts: int) -> int:
    """Keys and values of one position."""
    models = (shape.model, shape.drafter) if drafts else (shape.model,)
    configs = [json.loads((one / "config.json").read_text()) for one in models]
    return sum(
        2 * 2 * one["num_hidden_layers"] * one["num_key_value_heads"] * one["head_dim"] for one in configs
    )
