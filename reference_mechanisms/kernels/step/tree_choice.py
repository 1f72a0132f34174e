"""Which kernels a step of trees runs with: of the same kind as its other ones."""

from __future__ import annotations

import importlib

from reference_mechanisms.kernels.step.choice import TORCH, Kernels
from reference_mechanisms.kernels.step.trees import TORCH_TREES, TreeKernels

FUSED = "reference_mechanisms.kernels.step.fused_trees"


def tree_kernels_for(kernels: Kernels) -> TreeKernels:
    """Triton's where the others are; else plain torch."""
    if kernels is TORCH:
        return TORCH_TREES
    fused: TreeKernels = importlib.import_module(FUSED).TREES
    return fused
