"""Which kernels a step of a few rows runs with on the machine at hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

import torch

from reference_mechanisms.kernels.step import twin
from reference_mechanisms.kernels.step.twin import Attend, Stand
from reference_mechanisms.targets.layer_ops import LayerOps

FUSED = "reference_mechanisms.kernels.step.fused"


class Kernels(NamedTuple):
    """One way to compute a step."""

    name: str  # for the report
    ops: Callable[[Stand], LayerOps]
    attend: Attend


TORCH = Kernels("torch", twin.torch_ops, twin.attend)


def kernels_for(device: torch.device, dtype: torch.dtype, head_dim: int) -> Kernels:
    """Triton's on CUDA, where it is installed and takes the type and the head size; else plain torch."""
    if device.type != "cuda":
        return TORCH
    try:
        fused = importlib.import_module(FUSED)
    except ImportError:
        return TORCH
    return Kernels("triton", fused.FusedOps, fused.attend) if fused.fits(dtype, head_dim) else TORCH
