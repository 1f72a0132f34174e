"""Which kernels a step of many requests runs with on the machine at hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.kernels.slots import twin
from reference_mechanisms.kernels.slots.delta import TORCH_SLOT_DELTA, SlotDeltaKernels
from reference_mechanisms.kernels.slots.packing import SlotStand
from reference_mechanisms.kernels.slots.trees import TORCH_SLOT_TREES, SlotTreeKernels
from reference_mechanisms.kernels.step.choice import TORCH, kernels_for
from reference_mechanisms.kernels.step.delta import TORCH_DELTA
from reference_mechanisms.kernels.step.tree_choice import delta_kernels_for
from reference_mechanisms.targets.layer_ops import LayerOps

FUSED = "reference_mechanisms.kernels.slots.fused"
TREES = "reference_mechanisms.kernels.slots.fused_trees"
DELTA = "reference_mechanisms.kernels.slots.fused_delta"


class SlotKernels(NamedTuple):
    """One way to compute a step."""

    name: str  # for the report
    ops: Callable[[SlotStand], LayerOps]
    attend: Callable[[Tensor, int, SlotStand], Tensor]  # queries [rows, heads, head_dim], layer, stand
    keep: Callable[[Tensor, Tensor | None, SlotStand], None]  # `twin.keep`
    best: Callable[[Tensor], Tensor]  # `kernels.step.twin.best`


def slot_kernels_for(device: torch.device, dtype: torch.dtype, head_dim: int) -> SlotKernels:
    """Triton's where a step of one request has them (`kernels.step.choice`); else plain torch."""
    single = kernels_for(device, dtype, head_dim)
    if single is TORCH:
        return SlotKernels(single.name, twin.torch_ops, _attend_in_torch, twin.keep, single.best)
    fused = importlib.import_module(FUSED)

    def attend(queries: Tensor, layer: int, stand: SlotStand) -> Tensor:
        found: Tensor = fused.attend(queries, stand.places[layer], stand)
        return found

    return SlotKernels(single.name, fused.SlotOps, attend, fused.keep, single.best)


def slot_tree_kernels_for(device: torch.device, dtype: torch.dtype, head_dim: int) -> SlotTreeKernels:
    """Of trees: of the same kind as those of chains."""
    if kernels_for(device, dtype, head_dim) is TORCH:
        return TORCH_SLOT_TREES
    fused: SlotTreeKernels = importlib.import_module(TREES).SLOT_TREES
    return fused


def slot_delta_kernels_for(device: torch.device, dtype: torch.dtype) -> SlotDeltaKernels:
    """Of recurrent layers: of the same kind as those of a step of one request."""
    if delta_kernels_for(device, dtype) is TORCH_DELTA:
        return TORCH_SLOT_DELTA
    fused: SlotDeltaKernels = importlib.import_module(DELTA).SLOT_DELTA
    return fused


def _attend_in_torch(queries: Tensor, layer: int, stand: SlotStand) -> Tensor:
    return twin.SlotAttention(stand, queries.dtype)(layer, queries)
