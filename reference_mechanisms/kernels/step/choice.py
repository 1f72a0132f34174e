"""Which kernels a step of a few rows runs with on the machine at hand."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.kernels.step import replaying, settling, twin
from reference_mechanisms.kernels.step.replaying import Replay
from reference_mechanisms.kernels.step.settling import Settle
from reference_mechanisms.kernels.step.twin import WAYS, Attend, Stand, Ways
from reference_mechanisms.targets.layer_ops import LayerOps

FUSED = "reference_mechanisms.kernels.step.fused"
ATTENTION = "reference_mechanisms.kernels.step.fused_attention"
SETTLING = "reference_mechanisms.kernels.step.fused_settling"


class Kernels(NamedTuple):
    """One way to compute a step."""

    name: str  # for the report
    ops: Callable[[Stand], LayerOps]
    attend: Attend
    settle: Settle
    keep: Callable[[Tensor, Tensor | None, Stand], None]  # `twin.keep`
    best: Callable[[Tensor], Tensor]  # `twin.best`
    replay: Replay


TORCH = Kernels("torch", twin.torch_ops, twin.attend, settling.settle, twin.keep, twin.best, replaying.replay)


def kernels_for(
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    ways: Ways = WAYS,
    ahead: Sequence[Tensor | None] = (),
) -> Kernels:
    """Triton's on CUDA, where it is installed and takes the type and the head size; else plain torch.

    Args:
        device: runs the step.
        dtype: of the rows.
        head_dim: of the attention.
        ways: of the kernels.
        ahead: weights of the product behind each layer's attention, for `Ways.fetch`.
    """
    if device.type != "cuda":
        return TORCH
    try:
        fused, attention, ends = (importlib.import_module(name) for name in (FUSED, ATTENTION, SETTLING))
    except ImportError:
        return TORCH
    if not fused.fits(dtype, head_dim):
        return TORCH
    return Kernels(
        "triton",
        functools.partial(fused.FusedOps, ways=ways, ahead=ahead),
        attention.attend,
        ends.settle,
        fused.keep,
        ends.best,
        ends.replay,
    )
