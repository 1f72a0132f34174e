"""A target whose matrices have 4-bit weights: symmetric integers with a scale for 64 columns of a row.

The integers are those of `drafters/integers.py`; the products are torch's own 4-bit kernels where it has one
for the device and the type, CPU and CUDA in bfloat16. Elsewhere the weights are multiplied out, which tells
how often such a verifier agrees and saves no time. torchao was tried for this: release 0.18 has no 4-bit
weights on a CPU, and on CUDA calls the same kernel of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.integers import GROUP, NIBBLE_ZERO, nearest
from reference_mechanisms.engine.target import Target
from reference_mechanisms.targets.checkpoint import Checkpoint
from reference_mechanisms.targets.config import ARCHITECTURES, read_config, read_json
from reference_mechanisms.targets.fields import architecture
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.hybrid_config import HYBRIDS, RUNS, read_hybrid_config
from reference_mechanisms.targets.linear import RowLinear
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.targets.matrices import Linear, PlainMatrices

GROUPS = (256, 128, GROUP, 32)  # columns with one scale, that the kernels know
CUDA_TILES = 8  # inner tiles of 16 columns that CUDA's kernel packs together
CPU_ROWS = 16  # output rows that the CPU's kernel packs together
CUDA_ROWS = 8


class Rounded(NamedTuple):
    """A matrix of 4-bit weights."""

    integers: Tensor  # int32 [rows, columns], 0 stored as `NIBBLE_ZERO`
    scales: Tensor  # float32 [rows, groups]
    group: int  # columns

    def restored(self, dtype: torch.dtype) -> Tensor:
        """The matrix [rows, columns] that it stands for."""
        wide = (self.integers - NIBBLE_ZERO).float().view(*self.scales.shape, self.group)
        return (wide * self.scales[..., None]).flatten(1).to(dtype)


def rounded(matrix: Tensor) -> Rounded:
    """Round [rows, columns] to 4 bits; groups are of 64 columns, of 32 or whole rows where 64 do not fit."""
    columns = matrix.shape[1]
    group = next((size for size in (GROUP, GROUPS[-1]) if columns % size == 0), columns)
    integers, scales = nearest(matrix.float(), group)
    return Rounded((integers + NIBBLE_ZERO).to(torch.int32), scales.float(), group)


class FourBitLinear:
    """y = x W^T + b for x [rows, in_features], with 4-bit weights."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Round a weight [out_features, in_features]."""
        found = rounded(weight)
        self._bias = bias
        self._product = _product(found, weight.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, out_features]."""
        y = self._product(x)
        return y if self._bias is None else y + self._bias


def has_kernel(rows: int, columns: int, group: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether torch multiplies 4-bit weights of this shape as such."""
    if dtype != torch.bfloat16 or group not in GROUPS:
        return False
    if device.type == "cuda":
        return rows % CUDA_ROWS == 0 and columns % (16 * CUDA_TILES) == 0
    return device.type == "cpu" and rows % CPU_ROWS == 0


def _product(found: Rounded, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    integers, group = found.integers, found.group
    rows, columns = integers.shape
    if not has_kernel(rows, columns, group, dtype, integers.device):
        return RowLinear(found.restored(dtype))
    scales = found.scales.to(dtype)
    both = torch.stack((scales, torch.zeros_like(scales)), dim=-1).transpose(0, 1).contiguous()
    if integers.is_cuda:
        pairs = (integers[:, 0::2] << 4 | integers[:, 1::2]).to(torch.uint8)
        packed = torch.ops.aten._convert_weight_to_int4pack(pairs, CUDA_TILES)
        return lambda x: torch.ops.aten._weight_int4pack_mm(x, packed, group, both)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, 1)
    return lambda x: torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, group, both)


class FourBitMatrices(PlainMatrices):
    """Every product of 4-bit weights, lookups as they are."""

    @property
    def kernel(self) -> str:
        """As in `matrices.Matrices`."""
        kernel = "torch's kernel" if self._dtype == torch.bfloat16 else "multiplied out"
        return f"4-bit weights, {kernel}"

    def _product(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return FourBitLinear(weight, bias)


def load_four_bit(folder: Path, dtype: torch.dtype, device: torch.device) -> Target:
    """The target of a Hugging Face folder, with 4-bit weights.

    Raises:
        TargetError: the folder is not a complete, unquantised checkpoint of a known architecture.
    """
    where = str(folder / "config.json")
    found = architecture(read_json(folder / "config.json"), {*ARCHITECTURES, *HYBRIDS}, RUNS, where)
    with torch.inference_mode(), Checkpoint(folder) as checkpoint:
        matrices = FourBitMatrices(checkpoint, dtype, device)
        if found in HYBRIDS:
            return HybridTarget(read_hybrid_config(folder), checkpoint, dtype, device, matrices)
        return LlamaTarget(read_config(folder), checkpoint, dtype, device, matrices)
