"""Linear layers whose rows do not notice each other.

A matrix product may pick another kernel, and so another rounding, for another number of rows. For
bitwise equality of one-token and verify steps the kernel must be the same for both. oneDNN's
prepacked product was found to round alike for every row count from two up; one row takes a
matrix-vector kernel and is never used. `engine.probe` checks all of this on the machine at hand.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

MIN_ROWS = 2


def prepacks(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN's prepacked product can be used for this type on this device."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


class RowLinear:
    """y = x W^T + b for x [rows, in_features]; a single row is computed as one of two."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Take a weight [out_features, in_features]; it may be repacked for the device."""
        self._bias = bias
        self._packed = prepacks(weight.dtype, weight.device)
        self._weight: Tensor = (
            torch.ops.mkldnn._reorder_linear_weight(weight, MIN_ROWS) if self._packed else weight
        )

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, out_features]."""
        if x.shape[0] < MIN_ROWS:
            return self._product(x.repeat(MIN_ROWS, 1))[: x.shape[0]]
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        if not self._packed:
            return F.linear(x, self._weight, self._bias)
        packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return packed
