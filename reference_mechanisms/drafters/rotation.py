"""Rotary embedding of drafters: their own base and scaling, not the target's; YaRN beside the known kinds.

Source of YaRN: Peng et al., arXiv 2309.00071, with the ramp and the attention factor that published
configurations are read with.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.targets.rope import RopeScaling, inverse_frequencies


class Yarn(NamedTuple):
    """`rope_scaling` of type "yarn"."""

    factor: float
    original_positions: int
    beta_fast: float = 32.0  # turns over the trained length above which a pair keeps its frequency
    beta_slow: float = 1.0  # and below which it is slowed by the whole factor
    attention_factor: float | None = None  # None: from `factor`


class Rope(NamedTuple):
    """How queries and keys are rotated."""

    scaling: RopeScaling
    yarn: Yarn | None = None


def frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Radians per position of each rotated pair, float32 [head_dim / 2], and the factor on both tables."""
    if rope.yarn is None:
        return inverse_frequencies(rope.scaling, head_dim), 1.0
    yarn, theta = rope.yarn, rope.scaling.theta

    def pair_with(turns: float) -> float:
        """The pair, as a real number, that makes this many turns over the trained length."""
        return head_dim * math.log(yarn.original_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_with(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_with(yarn.beta_slow)), head_dim - 1)
    plain = inverse_frequencies(RopeScaling(theta), head_dim)
    span = float(high - low) or 0.001
    slowed = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    scale = yarn.attention_factor
    if scale is None:
        scale = 0.1 * math.log(yarn.factor) + 1.0 if yarn.factor > 1 else 1.0
    return plain / yarn.factor * slowed + plain * (1 - slowed), scale


@functools.lru_cache(maxsize=16)
def _frequencies_on(rope: Rope, head_dim: int, device: torch.device) -> tuple[Tensor, float]:
    """`frequencies` on a device: copied there once, since a CUDA graph cannot copy from the host."""
    with torch.inference_mode(mode=False):
        per_position, scale = frequencies(rope, head_dim)
        return per_position.to(device), scale


def rotation(rope: Rope, head_dim: int, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Cosines and sines of positions [...], [2, ..., 1, head_dim]."""
    per_position, scale = _frequencies_on(rope, head_dim, positions.device)
    angles = positions[..., None].to(torch.float32) * per_position
    angles = torch.cat((angles, angles), dim=-1)
    return (torch.stack((angles.cos(), angles.sin())) * scale).unsqueeze(-2).to(dtype)


def rotate(x: Tensor, cosines_and_sines: Tensor) -> Tensor:
    """Rotate x [..., heads, head_dim]; the two halves of a head hold the pairs."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines_and_sines[0] + torch.cat((-second, first), dim=-1) * cosines_and_sines[1]
