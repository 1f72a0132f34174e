"""Which kernels trees and recurrent layers of a step run with: of the same kind as its other ones."""

from __future__ import annotations

import importlib

import torch

from reference_mechanisms.kernels.step.choice import TORCH, Kernels
from reference_mechanisms.kernels.step.delta import TORCH_DELTA, DeltaKernels
from reference_mechanisms.kernels.step.dense_delta import TORCH_DENSE_DELTA
from reference_mechanisms.kernels.step.trees import TORCH_TREES, TreeKernels

FUSED = "reference_mechanisms.kernels.step.fused_trees"
DELTA = "reference_mechanisms.kernels.step.fused_delta"
DENSE_DELTA = "reference_mechanisms.kernels.step.fused_dense_delta"


def tree_kernels_for(kernels: Kernels) -> TreeKernels:
    """Triton's where the others are; else plain torch."""
    if kernels is TORCH:
        return TORCH_TREES
    fused: TreeKernels = importlib.import_module(FUSED).TREES
    return fused


def delta_kernels_for(device: torch.device, dtype: torch.dtype) -> DeltaKernels:
    """Of recurrent layers: Triton's on CUDA, where it is installed, for heads of any size."""
    if device.type != "cuda" or dtype == torch.float64:
        return TORCH_DELTA
    try:
        fused: DeltaKernels = importlib.import_module(DELTA).DELTA
    except ImportError:
        return TORCH_DELTA
    return fused


def dense_delta_kernels_for(device: torch.device, dtype: torch.dtype) -> DeltaKernels:
    """The same for the WY form, which rounds otherwise."""
    if device.type != "cuda" or dtype == torch.float64:
        return TORCH_DENSE_DELTA
    try:
        fused: DeltaKernels = importlib.import_module(DENSE_DELTA).DENSE_DELTA
    except ImportError:
        return TORCH_DENSE_DELTA
    return fused
