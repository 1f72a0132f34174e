"""Matrices in eight bits with a scale a row, for what may be rounded: a drafter decides no output.

int8 is symmetric, rounded to nearest; fp8 is e4m3, its largest number the largest of the row. Products sum
what the bytes stand for in float32, then take the row's scale, then round to bf16 once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.arrange import Arranged, arrange_eight
from reference_mechanisms.kernels.weight12.schedule import Eight
from reference_mechanisms.targets.matrices import Linear, PlainMatrices, Source
from reference_mechanisms.weight12 import product

LARGEST = {"int8": 127.0, "fp8": 448.0}
TYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


class Rounded(NamedTuple):
    """A matrix [rows, columns]: what its bytes stand for, times its scales."""

    steps: Tensor  # int8 or float8_e4m3fn [rows, columns]
    scales: Tensor  # float32 [rows]; 0 for a row of zeros


def rounded(matrix: Tensor, eight: Eight) -> Rounded:
    """Round a matrix [rows, columns], finite."""
    wide = matrix.detach().float()
    scales = wide.abs().amax(1) / LARGEST[eight]
    units = wide / torch.where(scales > 0, scales, 1.0)[:, None]
    if eight == "int8":
        return Rounded(units.round().clamp(-127, 127).to(torch.int8), scales)
    return Rounded(units.clamp(-448, 448).to(torch.float8_e4m3fn), scales)


def restored(matrix: Rounded) -> Tensor:
    """What it stands for, float32 [rows, columns]."""
    return matrix.steps.float() * matrix.scales[:, None]


def arranged(matrix: Rounded) -> Arranged:
    """In the order of the streaming kernels."""
    if matrix.steps.dtype == torch.int8:
        steps = matrix.steps.short()
        bytes_ = torch.where(steps < 0, 128 - steps, steps).to(torch.uint8)
        return arrange_eight(bytes_, matrix.scales, "int8")
    return arrange_eight(matrix.steps.view(torch.uint8), matrix.scales, "fp8")


class EightLinear:
    """y = x W^T + b in plain torch; the twin of the kernel, up to the order of its sums."""

    def __init__(self, weight: Rounded, bias: Tensor | None = None) -> None:
        """Take a matrix and a bias [N]."""
        # Their bytes stand for numbers that bfloat16 holds, and so does every wider type.
        self._steps, self._scales, self._bias = weight.steps.float(), weight.scales, bias

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, N] of x [rows, K]."""
        found = (torch.nn.functional.linear(x.float(), self._steps) * self._scales).to(x.dtype)
        return found if self._bias is None else found + self._bias


class StreamedEightLinear:
    """The same on a CUDA device, by the streaming kernels."""

    def __init__(self, weight: Rounded, bias: Tensor | None = None) -> None:
        """Take a matrix and a bias [N]; complete when this returns."""
        self._weight, self._bias = arranged(weight), bias
        torch.cuda.synchronize(self._weight.units.device)  # launches may overlap the one before

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, N] of bf16 x [rows, K]."""
        from reference_mechanisms.kernels.weight12 import launching  # noqa: PLC0415 - CUDA only

        found = product.by_parts(x, lambda part: launching.linear(part, self._weight))
        return found if self._bias is None else found + self._bias


class EightMatrices(PlainMatrices):
    """Products with matrices rounded to eight bits; tables stay as they are."""

    def __init__(self, source: Source, eight: Eight, dtype: torch.dtype, device: torch.device) -> None:
        """Take them from a checkpoint as they are asked for."""
        super().__init__(source, dtype, device)
        self._eight: Eight = eight
        self._streams = dtype == torch.bfloat16 and product.streams(device)

    @property
    def kernel(self) -> str:
        """See `targets.matrices.Matrices`."""
        return f"{self._eight}, {'streamed' if self._streams else 'torch'}"

    @property
    def rows_round_alike(self) -> bool:
        """See `targets.matrices.Matrices`."""
        return self._streams

    def linear(self, parts: Sequence[tuple[str, int]], columns: int, bias: Tensor | None) -> Linear:
        """See `targets.matrices.Matrices`."""
        made = [self._rounded(name, rows, columns) for name, rows in parts]
        found = Rounded(torch.cat([one.steps for one in made]), torch.cat([one.scales for one in made]))
        return StreamedEightLinear(found, bias) if self._streams else EightLinear(found, bias)

    def _rounded(self, name: str, rows: int, columns: int) -> Rounded:
        """A matrix; a source that holds bytes and scales already has rounded it."""
        stem, source = name.removesuffix("weight"), self._source
        if f"{stem}steps" not in source:
            return rounded(self._take(name, rows, columns), self._eight)
        steps = source.take(f"{stem}steps", (rows, columns), TYPES[self._eight])
        scales = source.take(f"{stem}scales", (rows,), torch.float32)
        return Rounded(steps.to(self._device), scales.to(self._device))
