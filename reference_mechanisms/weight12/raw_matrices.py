"""A target's matrices in bf16, multiplied by the schedule of the packed ones: the twin as an engine.

cuBLAS picks a kernel by the number of rows, so its one-token and verify steps round differently. These
kernels do not; and they give bit for bit what packed weights give. On a CPU matrices are plain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.arrange import Arranged, arrange_raw, in_turn
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

    @property
    def units(self) -> Tensor:
        """What a product reads."""
        return self._weight.units

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, N] of x [rows, K]; more than 64 rows as several products, so that none notices."""
        from reference_mechanisms.kernels.weight12 import launching  # noqa: PLC0415 - CUDA only

        found = product.by_parts(x, lambda part: launching.linear(part, self._weight))
        return found if self._bias is None else found + self._bias


class RawMatrices(PlainMatrices):
    """Matrices in bf16 for the streaming kernels."""

    def __init__(self, source: Source, device: torch.device, *, gates: bool = False) -> None:
        """Take them from a checkpoint as they are asked for; `gates` as of `PackedMatrices`."""
        super().__init__(source, torch.bfloat16, device)
        self._streams = product.streams(device)
        self._gates = gates and self._streams

    @property
    def kernel(self) -> str:
        """See `targets.matrices.Matrices`."""
        return "bf16, streamed" if self._streams else super().kernel

    @property
    def rows_round_alike(self) -> bool:
        """See `targets.matrices.Matrices`."""
        return self._streams or super().rows_round_alike

    def gated(self, parts: Sequence[tuple[str, int]], columns: int) -> Linear | None:
        """See `targets.matrices.Matrices`."""
        if not self._gates or not opens(parts):
            return None
        weight = torch.cat([self._take(name, rows, columns) for name, rows in parts])
        return gated_linear(arrange_raw(weight[in_turn(len(weight)).to(weight.device)]))

    def _product(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return raw_linear(weight, bias) if self._streams else super()._product(weight, bias)


def load_streamed_llama(folder: Path, device: torch.device, *, gates: bool = False) -> LlamaTarget:
    """Load a dense target in bf16 for the streaming kernels; `gates` as of `RawMatrices`.

    Raises:
        TargetError: the folder is no complete checkpoint of a dense architecture.
    """
    config = read_config(folder)
    with torch.inference_mode(), Checkpoint(folder) as checkpoint:
        matrices = RawMatrices(checkpoint, device, gates=gates)
        return LlamaTarget(config, checkpoint, torch.bfloat16, device, matrices)


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


def opens(parts: Sequence[tuple[str, int]]) -> bool:
    """Whether a gate and what it opens have rows that the gated kernels take."""
    return len(parts) == 2 and parts[0][1] == parts[1][1] and parts[0][1] % 8 == 0


def gated_linear(weight: Arranged) -> RawLinear:
    """SiLU(gate) times the other, in one launch with the product, complete when this returns.

    Args:
        weight: its rows in the order of `in_turn`.
    """
    torch.cuda.synchronize(weight.units.device)  # launches may overlap the one before
    return RawLinear(dataclasses.replace(weight, gated=True))
