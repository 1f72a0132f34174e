"""Peaks of this machine and the size of a target, measured and read; a few seconds."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from agent_loop.cost_model.floors import Machine, ModelSize
from harness.plan import Deployment

BYTES = 1 << 28  # read for the bandwidth: larger than any cache
SIDE = {"cpu": 1024, "cuda": 8192}  # of the matrices for the peak of operations
REPEATS = 20  # the best of many: a busy machine must not pass for a slow one
NO_PRODUCT = ("norm", "bias")  # parameters that are in no matrix product


def measure_machine(deployment: Deployment, clock: Callable[[], float] = time.perf_counter) -> Machine:
    """Bandwidth, operations a second and launch time on the deployment's device: best of a few.

    Of servers, the GPU of this machine is taken for theirs where it has one.
    """
    remote_gpu = deployment.device == "remote" and torch.cuda.is_available()
    device = torch.device("cuda" if deployment.device == "cuda" or remote_gpu else "cpu")
    dtype: torch.dtype = getattr(torch, deployment.target.dtype)
    if deployment.threads is not None and device.type == "cpu":
        torch.set_num_threads(deployment.threads)

    def timed(work: Callable[[], object]) -> float:
        work()
        best = float("inf")
        for _ in range(REPEATS):
            _wait(device)
            start = clock()
            work()
            _wait(device)
            best = min(best, clock() - start)
        return best

    block = torch.ones(BYTES // 4, dtype=torch.float32, device=device)
    side = SIDE[device.type]
    matrix = torch.ones(side, side, dtype=dtype, device=device)
    small = torch.ones(1, device=device)
    return Machine(
        bytes_per_s=BYTES / timed(block.sum),
        flops_per_s=2.0 * side**3 / timed(lambda: matrix @ matrix),
        launch_s=timed(lambda: [small.add_(1.0) for _ in range(100)]) / 100.0,
        how=f"best of {REPEATS} on {device.type}: sum of {BYTES} bytes, {side} x {side} product in {dtype}",
    )


def model_size(folder: Path, deployment: Deployment) -> ModelSize | None:
    """Size of a target from its weight files; None where there are none here.

    The table of embeddings is left out where another matrix gives the logits: a step reads one row of it.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                shapes[name] = tuple(file.get_slice(name).get_shape())
    untied = any(name.startswith("lm_head") for name in shapes)
    used = {
        name: shape
        for name, shape in shapes.items()
        if len(shape) > 1
        and not any(word in name for word in NO_PRODUCT)
        and not (untied and "embed_tokens" in name)
    }
    if not used:
        return None
    parameters = sum(math.prod(shape) for shape in used.values())
    width = getattr(torch, deployment.target.dtype).itemsize
    packed = deployment.weights_format == "weight12"
    config = _config(folder)
    heads = config.get("num_attention_heads", 0)
    head_dim = config.get("head_dim") or (config.get("hidden_size", 0) // heads if heads else 0)
    kv_heads = config.get("num_key_value_heads", heads)
    return ModelSize(
        parameters=parameters,
        weight_bytes=parameters * 3 // 2 if packed else parameters * width,
        kv_bytes=2 * config.get("num_hidden_layers", 0) * kv_heads * head_dim * width,
        vocabulary=config.get("vocab_size", 0),
    )


def _config(folder: Path) -> dict[str, Any]:
    """The target's configuration, of its text part where it has several; {}: none that can be read."""
    try:
        found = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return dict(found.get("text_config", found)) if isinstance(found, dict) else {}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
