"""Rotary position embedding: frequencies as Hugging Face configurations describe them.

Sources: RoFormer (arXiv 2104.09864); the `llama3` scaling of Llama 3.1's published configuration.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor


class RopeScaling(NamedTuple):
    """`rope_parameters` (older: `rope_theta` and `rope_scaling`) of a config.json."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192


def inverse_frequencies(scaling: RopeScaling, head_dim: int) -> Tensor:
    """Radians per position of each rotated pair, float32 [head_dim / 2].

    float32 arithmetic in this order is what the checkpoints' own code does; a better rounding would
    be another model.
    """
    frequencies = 1.0 / (scaling.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "default":
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    longest = scaling.original_positions / scaling.low_freq_factor
    shortest = scaling.original_positions / scaling.high_freq_factor
    slowed = torch.where(wavelengths > longest, frequencies / scaling.factor, frequencies)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = (scaling.original_positions / wavelengths - scaling.low_freq_factor) / span
    blended = (1 - smooth) * slowed / scaling.factor + smooth * slowed
    between = (wavelengths >= shortest) & (wavelengths <= longest)
    return torch.where(between, blended, slowed)


def rotation_table(scaling: RopeScaling, head_dim: int, positions: int, dtype: torch.dtype) -> Tensor:
    """Cosines and signed sines of every position, [positions, 2, 1, head_dim].

    The sine of the first half carries the minus sign of the rotation, so that a rotation is
    x * cos + swapped_halves(x) * sin.
    """
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * inverse_frequencies(scaling, head_dim)
    angles = torch.cat((angles, angles), dim=-1)
    cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)
    sines[:, : head_dim // 2].neg_()
    return torch.stack((cosines, sines), dim=1).unsqueeze(2)


def rotate_(x: Tensor, cosines_and_sines: Tensor) -> None:
    """Rotate x [rows, heads, head_dim] in place by the table's rows [rows, 2, 1, head_dim].

    Both products are rounded before they are added, as stock does.
    """
    rows, heads, head_dim = x.shape
    cosines, sines = cosines_and_sines.unbind(1)
    swapped = x.view(rows, heads, 2, head_dim // 2).flip(2).view(rows, heads, head_dim)
    torch.add(x * cosines, swapped.mul_(sines), out=x)
