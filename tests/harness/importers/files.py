"""Small made-up results in the shape of each tool: one long question and two short ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Speculation is slower on the long request and fast on the short ones: total time 21 s against 25.4 s.
TOKENS = (2000, 50, 50)
BASE_SECONDS = (20.0, 0.5, 0.5)
SPEC_SECONDS = (25.0, 0.2, 0.2)
TTFT = 0.1
INPUTS = (11, 12, 13)


def spec_bench(path: Path, seconds: tuple[float, ...], *, steps: bool, texts: str = "answer") -> Path:
    lines = [
        {
            "question_id": 81 + n,
            "category": "writing" if n else "math",
            "model_id": "vicuna-7b-v1.3",
            "choices": [
                {
                    "index": 0,
                    "turns": [f"{texts} {n}"],
                    "decoding_steps": [10],
                    "new_tokens": [TOKENS[n]],
                    "wall_time": [seconds[n]],
                    "accept_lengths": [1] * 100 if n == 0 and steps else [5] * 4 if steps else [1],
                }
            ],
        }
        for n in range(3)
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def serving(path: Path, seconds: tuple[float, ...], **more: Any) -> Path:
    """vLLM's shape with details; `more` adds or takes (None) fields."""
    document = {
        "date": "20261202-120000",
        "endpoint_type": "vllm",
        "label": None,
        "model_id": "Qwen/Qwen3-8B",
        "tokenizer_id": "Qwen/Qwen3-8B",
        "num_prompts": 3,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 1,
        "duration": sum(seconds),
        "completed": 3,
        "failed": 0,
        "total_output_tokens": sum(TOKENS),
        "output_throughput": sum(TOKENS) / sum(seconds),
        "input_lens": list(INPUTS),
        "output_lens": list(TOKENS),
        "ttfts": [TTFT] * 3,
        "itls": [[s - TTFT] for s in seconds],
        "generated_texts": ["a", "b", "c"],
        "errors": ["", "", ""],
        **more,
    }
    path.write_text(json.dumps(document))
    return path


def sglang(path: Path, seconds: tuple[float, ...]) -> Path:
    """SGLang's: appended lines, no latencies and no `burstiness`."""
    vllm = json.loads(serving(path, seconds).read_text())
    names = ("burstiness", "tokenizer_id", "endpoint_type", "model_id", "date", "label", "failed")
    line = {key: value for key, value in vllm.items() if key not in names}
    line |= {
        "backend": "sglang",
        "dataset_name": "sharegpt",
        "accept_length": 3.25,
        "mean_e2e_latency_ms": 1.0,
    }
    path.write_text(json.dumps({**line, "accept_length": 9.0}) + "\n" + json.dumps(line) + "\n")
    return path


def guidellm(path: Path, seconds: tuple[float, ...]) -> Path:
    order = (2, 0, 1)  # as they ended
    rows = [
        {
            "request_args": json.dumps({"body": {"prompt": f"prompt {n}"}}),
            "output": "text",
            "output_tokens": TOKENS[n],
            "prompt_tokens": INPUTS[n],
            "request_latency": seconds[n],
            "time_to_first_token_ms": TTFT * 1e3,
        }
        for n in order
    ]
    benchmark = {
        "config": {"strategy": {"type_": "concurrent", "streams": 4}, "backend": {"model": "Qwen/Qwen3-8B"}},
        "duration": sum(seconds),
        "requests": {"successful": rows, "errored": [], "incomplete": []},
    }
    path.write_text(json.dumps({"metadata": {"guidellm_version": "0.8.0"}, "benchmarks": [{}, benchmark]}))
    return path


def aiperf(path: Path, seconds: tuple[float, ...]) -> Path:
    def record(n: int, phase: str, **more: Any) -> dict[str, Any]:
        return {
            "metadata": {
                "conversation_id": f"c{n}",
                "turn_index": 0,
                "benchmark_phase": phase,
                "was_cancelled": False,
                "request_start_ns": 10**18,
                "request_end_ns": 10**18 + int(seconds[n] * 1e9),
            },
            "metrics": {
                "output_sequence_length": {"value": TOKENS[n], "unit": "tokens"},
                "request_latency": {"value": seconds[n] * 1e3, "unit": "ms"},
                "time_to_first_token": {"value": TTFT * 1e3, "unit": "ms"},
            },
            "error": None,
            **more,
        }

    failed = record(1, "profiling", error={"code": 500, "type": "x", "message": "y"}, metrics={})
    lines = [record(0, "warmup"), *(record(n, "profiling") for n in range(3)), failed]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def aiperf_summary(path: Path) -> Path:
    document = {
        "request_latency": {"unit": "ms", "avg": 500.0},
        "request_count": {"unit": "requests", "avg": 200.0},
        "benchmark_duration": {"unit": "sec", "avg": 15.5},
        "total_osl": {"unit": "tokens", "avg": 19370.0},
        "spec_decode_acceptance_length": {"unit": "tokens", "avg": 3.1},
        "spec_decode_token_weighted_acceptance_length": {"unit": "tokens", "avg": 2.9},
        "telemetry_data": {"endpoints": {"a": {"gpus": {"gpu_0": {"gpu_name": "NVIDIA H200"}}}}},
        "input_config": {
            "endpoint": {"model_names": ["Qwen/Qwen3-8B"], "type": "chat"},
            "loadgen": {"concurrency": 8},
        },
    }
    path.write_text(json.dumps(document))
    return path
