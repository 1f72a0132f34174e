"""bf16 patterns of every kind that a weight format must survive."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
Shape = tuple[int, ...]


def rounded(values: npt.NDArray[np.float64]) -> Bits:
    """Patterns of finite values; rounding is towards zero, which is good enough for samples."""
    return np.asarray(np.asarray(values, np.float32).view(np.uint32) >> 16, np.uint16)


def normal(shape: Shape, seed: int = 0) -> Bits:
    return rounded(np.random.default_rng(seed).normal(0, 0.02, shape))


def heavy_tailed(shape: Shape, seed: int = 0) -> Bits:
    return rounded(0.02 * np.random.default_rng(seed).standard_t(3, shape))


def zero_rich(shape: Shape, seed: int = 0) -> Bits:
    """A tenth of +0 or -0, one in a thousand subnormal."""
    draw = np.random.default_rng(seed)
    kind = draw.random(shape)
    zero = np.where(kind < 0.05, 0x8000, 0)
    tiny = np.where(kind > 0.999, draw.integers(1, 128, shape), normal(shape, seed))
    return np.asarray(np.where(kind < 0.1, zero, tiny), np.uint16)


def non_finite(shape: Shape, seed: int = 0) -> Bits:
    """Infinities and NaNs of every payload among normal weights."""
    draw = np.random.default_rng(seed)
    special = np.asarray(draw.integers(0, 256, shape), np.uint16)
    bad = (special & 0x7F) | 0x7F80 | (special & 0x80) << 8
    return np.asarray(np.where(draw.random(shape) < 0.02, bad, normal(shape, seed)), np.uint16)


def all_nan(shape: Shape, seed: int = 0) -> Bits:
    return np.asarray(np.random.default_rng(seed).integers(0x7F81, 0x8000, shape), np.uint16)


def one_spread_row(shape: Shape, seed: int = 0) -> Bits:
    """One row uses every exponent, all others are normal."""
    bits = normal(shape, seed).reshape(-1, shape[-1] if shape and shape[-1] else 1)
    if len(bits):
        bits[len(bits) // 2] = random_bits(bits.shape[-1:], seed)
    return bits.reshape(shape)


def random_bits(shape: Shape, seed: int = 0) -> Bits:
    return np.asarray(np.random.default_rng(seed).integers(0, 1 << 16, shape), np.uint16)


KINDS: dict[str, Callable[[Shape, int], Bits]] = {
    kind.__name__: kind
    for kind in (normal, heavy_tailed, zero_rich, non_finite, all_nan, one_spread_row, random_bits)
}
