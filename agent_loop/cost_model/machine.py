"""Peaks of this machine and the size of a target, measured and read; a few seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open

from agent_loop.cost_model.floors import Machine, ModelSize
from harness.plan import Deployment

BYTES = 1 << 28  # read for the bandwidth: larger than any cache
SIDE = {"cpu": 1024, "cuda": 8192}  # of the matrices for the peak of operations
REPEATS = 20  # the best of many: a busy machine must not pass for a slow one
NO_PRODUCT = ("norm", "bias")  # parameters that are in no matrix product


def measure_machine(deployment: Deployment, clock: Callable[[], float] = time.perf_counter) -> Machine:
    """Bandwidth, operations a second and launch time on the deployment's device: best of a few."""
    device = torch.device("cuda" if deployment.device == "cuda" else "cpu")
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
    if deployment.weights_format == "weight12":
        return ModelSize(parameters=parameters, weight_bytes=parameters * 3 // 2)
    return ModelSize(parameters=parameters, weight_bytes=parameters * width)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
