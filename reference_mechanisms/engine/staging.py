"""Numbers of the host on their way to a device, in the order of its work and without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def send(buffer: Tensor, numbers: Sequence[int] | Sequence[Sequence[int]]) -> None:
    """Fill a buffer."""
    buffer.copy_(_staged(numbers, buffer.device), non_blocking=True)


def on_device(numbers: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """A new tensor."""
    return _staged(numbers, device).to(device, non_blocking=True)


def _staged(numbers: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    made = torch.tensor(numbers)
    return made.pin_memory() if device.type == "cuda" else made
