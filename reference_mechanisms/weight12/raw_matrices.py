"""A target's matrices in bf16, multiplied by the schedule of the packed ones: the twin as an engine.

cuBLAS picks a kernel by the number of rows, so its one-token and verify steps round differently. These
kernels do not; and they give bit for bit what packed weights give. On a CPU matrices are plain.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.arrange import Arranged, arrange_raw
from reference_mechanisms.targets.checkpoint import Checkpoint
from reference_mechanisms.targets.config import read_config
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.hybrid_config import read_hybrid_config
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.targets.matrices import Linear, PlainMatrices, Source
from reference_mechanisms.weight12 import product


class RawLinear:
    """y = x W^T + b on a CUDA device."""

    def __init__(self, weight: Arranged, bias: Tensor | None = None) -> None:
        """Take an arranged matrix and a bias [N]."""
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, N] of x [rows, K]; more than 64 rows as several products, so that none notices."""
        from reference_mechanisms.kernels.weight12 import launching  # noqa: PLC0415 - CUDA only

        found = product.by_parts(x, lambda part: launching.linear(part, self._weight))
        return found if self._bias is None else found + self._bias


class RawMatrices(PlainMatrices):
    """Matrices in bf16 for the streaming kernels."""

    def __init__(self, source: Source, device: torch.device) -> None:
        """Take them from a checkpoint as they are asked for."""
        super().__init__(source, torch.bfloat16, device)
        self._streams = product.streams(device)

    @property
    def kernel(self) -> str:
        """See `targets.matrices.Matrices`."""
        return "bf16, streamed" if self._streams else super().kernel

    @property
    def rows_round_alike(self) -> bool:
        """See `targets.matrices.Matrices`."""
        return self._streams or super().rows_round_alike

    def _product(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return raw_linear(weight, bias) if self._streams else super()._product(weight, bias)


def load_streamed_llama(folder: Path, device: torch.device) -> LlamaTarget:
    """Load a dense target in bf16 for the streaming kernels.

    Raises:
        TargetError: the folder is no complete checkpoint of a dense architecture.
    """
    config = read_config(folder)
    with torch.inference_mode(), Checkpoint(folder) as checkpoint:
        return LlamaTarget(config, checkpoint, torch.bfloat16, device, RawMatrices(checkpoint, device))


def load_streamed_hybrid(folder: Path, device: torch.device) -> HybridTarget:
    """The same for a hybrid one.

    Raises:
        TargetError: the folder is no complete checkpoint of a hybrid architecture.
    """
    config = read_hybrid_config(folder)
    with torch.inference_mode(), Checkpoint(folder) as checkpoint:
        return HybridTarget(config, checkpoint, torch.bfloat16, device, RawMatrices(checkpoint, device))


def raw_linear(weight: Tensor, bias: Tensor | None = None) -> RawLinear:
    """A product with a bf16 matrix [N, K] on a CUDA device, complete when this returns."""
    arranged = arrange_raw(weight)
    torch.cuda.synchronize(weight.device)  # launches may overlap the one before
    return RawLinear(arranged, bias)
