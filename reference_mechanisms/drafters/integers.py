"""Matrices as small integers with scales: 8 bits with a scale a row, 4 bits with a scale a group.

A drafter decides nothing about the output, only how fast it comes, so its weights may be rounded: bytes
are worth more as weights than as digits. Symmetric, rounded to nearest, a function of the weights alone.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

GROUP = 32  # columns that share a scale of 4-bit integers
BYTE_LIMIT, NIBBLE_LIMIT = 127, 7  # largest integers; their negatives are the smallest
NIBBLE_ZERO = 8  # how 0 is stored in four bits
# Parts of the largest value of a group that the largest integer may stand for: cutting the largest off can
# cost less than the finer steps give back.
CUTS = tuple(1.0 - 0.03 * step for step in range(12))
HALF_SMALLEST, HALF_LARGEST = 2.0**-14, 65504.0

Bits = Literal[4, 8]


class Scaled(NamedTuple):
    """A matrix [rows, columns]: its integers times its scales."""

    integers: Tensor  # int8 [rows, columns]; or uint8 [rows, columns / 2], the even column in the low half
    scales: Tensor  # float16 or float32 [rows]; or [rows, columns / GROUP]


def scale(matrix: Tensor, bits: Bits) -> Scaled:
    """Round a matrix to integers.

    Args:
        matrix: [rows, columns], finite; for 4 bits the columns must be whole groups.
        bits: of an integer.
    """
    wide = matrix.detach().to("cpu", torch.float64)
    if bits == 8:
        scales = _as_stored(wide.abs().amax(-1) / BYTE_LIMIT)
        return Scaled(_rounded(wide, scales[:, None], BYTE_LIMIT).to(torch.int8), scales)
    groups = wide.view(len(wide), -1, GROUP)
    largest = groups.abs().amax(-1)
    best, least = torch.zeros_like(largest), torch.full_like(largest, torch.inf)
    for cut in CUTS:
        tried = _as_stored(cut * largest / NIBBLE_LIMIT).double()
        loss = (_rounded(groups, tried[..., None], NIBBLE_LIMIT) * tried[..., None] - groups).square().sum(-1)
        best, least = torch.where(loss < least, tried, best), torch.minimum(loss, least)
    scales = _as_stored(best)
    nibbles = (_rounded(groups, scales[..., None], NIBBLE_LIMIT) + NIBBLE_ZERO).to(torch.uint8).flatten(-2)
    return Scaled(nibbles[:, 0::2] | nibbles[:, 1::2] << 4, scales)


def restore(scaled: Scaled, dtype: torch.dtype) -> Tensor:
    """The matrix [rows, columns] that the integers stand for."""
    integers, scales = scaled.integers, scaled.scales.float()
    if integers.dtype == torch.int8:
        return (integers.float() * scales[:, None]).to(dtype)
    nibbles = torch.stack((integers & 15, integers >> 4), dim=-1).flatten(-2).float() - NIBBLE_ZERO
    return (nibbles.view(*scales.shape, GROUP) * scales[..., None]).flatten(-2).to(dtype)


def _rounded(values: Tensor, scales: Tensor, limit: int) -> Tensor:
    wide = scales.double()
    return (values / torch.where(wide > 0, wide, 1.0)).round().clamp(-limit, limit)


def _as_stored(scales: Tensor) -> Tensor:
    """In 16 bits where all of them keep their digits there, else in 32."""
    used = scales[scales > 0]
    fits = bool(((used >= HALF_SMALLEST) & (used <= HALF_LARGEST)).all())
    return scales.to(torch.float16 if fits else torch.float32)
