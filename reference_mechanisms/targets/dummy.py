"""A checkpoint of dummy weights: made from a seed, tensor by tensor, on the device where they will lie.

It stands in for the files of a folder (`matrices.Source`); all that is done with the tensors is the same.
A tensor hangs on seed, name, shape and kind of device alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

SPREAD = 0.02  # standard deviation of weights, as models of these families begin their training
NORM_SPREAD = 0.1  # of norm weights, around 1


class DummyCheckpoint:
    """Any tensor that is asked for, as `matrices.Source`."""

    def __init__(self, name: str, seed: int, device: torch.device, spread: float = SPREAD) -> None:
        """Take a name for error messages, where to make the tensors, and the spread of weights."""
        self.folder = Path(f"dummy {name}")
        self._seed, self._device, self._spread = seed, device, spread

    def __contains__(self, name: str) -> bool:
        """No tensor exists beside those that are taken."""
        del name
        return False

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Normal numbers; norm weights lie around 1."""
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        made = torch.Generator(self._device).manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        norm = len(shape) == 1 and name.endswith("norm.weight")
        found = torch.empty(shape, dtype=dtype, device=self._device)
        return found.normal_(float(norm), NORM_SPREAD if norm else self._spread, generator=made)

    def refuse_unused(self, ignore: Iterable[str], parts: Iterable[str] = ()) -> None:
        """Nothing is left over."""
        del ignore, parts
