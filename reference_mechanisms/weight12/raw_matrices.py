"""A target's matrices in bf16, multiplied by the schedule of the packed ones: the twin as an engine.

cuBLAS picks a kernel by the number of rows, so its one-token and verify steps round differently. These
kernels do not; and they give bit for bit what packed weights give. On a CPU matrices are plain.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.arrange import Arranged, arrange_raw
from reference_mechanisms.targets.matrices import Linear, PlainMatrices, Source, Table
from reference_mechanisms.weight12 import product


class RawLinear:
    """y = x W^T + b on a CUDA device."""

    def __init__(self, weight: Arranged, bias: Tensor | None = None) -> None:
        """Take an arranged matrix and a bias [N]."""
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, N] of x [rows, K]; more than 64 rows as several products, so that none notices."""
        from reference_mechanisms.kernels.weight12 import launching  # noqa: PLC0415 - CUDA only

        parts = [launching.linear(part, self._weight) for part in torch.split(x, product.MAX_TOKENS)]
        found = parts[0] if len(parts) == 1 else torch.cat(parts)
        return found if self._bias is None else found + self._bias


class RawTable:
    """An embedding; as a head it is a copy in the order of the kernels."""

    def __init__(self, weight: Tensor) -> None:
        """Take [rows, columns]."""
        self._weight = weight

    def __call__(self, ids: Tensor) -> Tensor:
        """Rows [..., columns] of ids [...]."""
        return self._weight[ids]

    def linear(self) -> Linear:
        """The same matrix as a head."""
        return raw_linear(self._weight)


class RawMatrices:
    """Matrices in bf16 for the streaming kernels."""

    def __init__(self, source: Source, device: torch.device) -> None:
        """Take them from a checkpoint as they are asked for."""
        self._source, self._device = source, device
        self._plain = None if product.streams(device) else PlainMatrices(source, torch.bfloat16, device)

    @property
    def kernel(self) -> str:
        """See `targets.matrices.Matrices`."""
        return "bf16, streamed" if self._plain is None else self._plain.kernel

    def linear(self, parts: Sequence[tuple[str, int]], columns: int, bias: Tensor | None) -> Linear:
        """See `targets.matrices.Matrices`."""
        if self._plain is not None:
            return self._plain.linear(parts, columns, bias)
        return raw_linear(torch.cat([self._take(name, rows, columns) for name, rows in parts]), bias)

    def table(self, name: str, rows: int, columns: int) -> Table:
        """See `targets.matrices.Matrices`."""
        if self._plain is not None:
            return self._plain.table(name, rows, columns)
        return RawTable(self._take(name, rows, columns))

    def _take(self, name: str, rows: int, columns: int) -> Tensor:
        return self._source.take(name, (rows, columns), torch.bfloat16).to(self._device)


def raw_linear(weight: Tensor, bias: Tensor | None = None) -> RawLinear:
    """A product with a bf16 matrix [N, K] on a CUDA device, complete when this returns."""
    arranged = arrange_raw(weight)
    torch.cuda.synchronize(weight.device)  # launches may overlap the one before
    return RawLinear(arranged, bias)
