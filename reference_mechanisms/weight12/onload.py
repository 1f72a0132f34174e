"""Pack a bf16 matrix where it is: for folders that are packed while they are loaded."""

from __future__ import annotations

import torch
from torch import Tensor

from reference_mechanisms.weight12 import planes
from reference_mechanisms.weight12.layout import reason_of_size, reason_to_keep
from reference_mechanisms.weight12.planes import Planes


def repacked(weight: Tensor) -> Planes:
    """A bf16 matrix packed, whatever its size; bit for bit what `encode` gives."""
    from reference_mechanisms.kernels.weight12.packing import pack  # noqa: PLC0415 - rarely needed

    return planes.from_arrays(pack(weight.contiguous()), weight.shape[1])


def packed_at_load(weight: Tensor) -> Planes | None:
    """A matrix packed; None if the format would keep it as it is."""
    kind = "BF16" if weight.dtype == torch.bfloat16 else str(weight.dtype)
    if weight.dim() != 2 or reason_to_keep(kind, tuple(weight.shape)) is not None:
        return None
    found = repacked(weight)
    if reason_of_size(tuple(weight.shape), len(found.ptab), len(found.rawrow)) is not None:
        return None
    return found
