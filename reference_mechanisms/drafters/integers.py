"""Matrices as small integers with scales: 8 bits with a scale a row, 4 bits with a scale a group.

A drafter decides nothing about the output, only how fast it comes, so its weights may be rounded: bytes
are worth more as weights than as digits. Symmetric. Eight bits are rounded to nearest. Four bits may know
what a matrix is multiplied with: then columns are rounded one after the other and each error is made good
in the columns behind it (GPTQ: Frantar, Ashkboos, Hoefler, Alistarh, arXiv 2210.17323).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

GROUP = 64  # columns that share a scale of 4-bit integers; a row that is no longer has one scale
BYTE_LIMIT, NIBBLE_LIMIT = 127, 7  # largest integers; their negatives are the smallest
NIBBLE_ZERO = 8  # how 0 is stored in four bits
# Parts of the largest value of a group that the largest integer may stand for: cutting the largest off can
# cost less than the finer steps give back.
CUTS = tuple(1.0 - 0.03 * step for step in range(12))
DAMPING = 0.01  # of the mean square of the inputs, added to that of each
HALF_SMALLEST, HALF_LARGEST = 2.0**-14, 65504.0

Bits = Literal[4, 8]


class Scaled(NamedTuple):
    """A matrix [rows, columns]: its integers times its scales."""

    integers: Tensor  # int8 [rows, columns]; or uint8 [rows, columns / 2], the even column in the low half
    scales: Tensor  # float16 or float32 [rows]; or [rows, groups]


def group_of(columns: int) -> int | None:
    """How many columns share a scale of 4-bit integers; None if a matrix of so many cannot have any."""
    if columns % 2 or (columns > GROUP and columns % GROUP):
        return None
    return min(columns, GROUP)


def scale(matrix: Tensor, bits: Bits, inputs: Tensor | None = None) -> Scaled:
    """Round a matrix to integers.

    Args:
        matrix: [rows, columns], finite; for 4 bits `group_of` must know its columns.
        bits: of an integer.
        inputs: sum over rows x that the matrix is multiplied with of x^T x, [columns, columns]; used for
            4 bits. None: nothing is known of them.
    """
    wide = matrix.detach().to("cpu", torch.float64)
    if bits == 8:
        scales = _as_stored(wide.abs().amax(-1) / BYTE_LIMIT)
        return Scaled(_rounded(wide, scales[:, None], BYTE_LIMIT).to(torch.int8), scales)
    group = group_of(wide.shape[1])
    if group is None:
        raise ValueError(f"{wide.shape[1]} columns cannot be stored in 4 bits")
    found = nearest(wide, group) if inputs is None else _making_good(wide, inputs, group)
    nibbles = (found[0] + NIBBLE_ZERO).to(torch.uint8)
    return Scaled(nibbles[:, 0::2] | nibbles[:, 1::2] << 4, found[1])


def nearest(matrix: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Round to 4-bit integers, each to the nearest, in the type of the matrix and where it lies.

    Args:
        matrix: [rows, columns], float32 or float64.
        group: columns that share a scale; divides them.

    Returns:
        Integers [rows, columns] in -`NIBBLE_LIMIT`..`NIBBLE_LIMIT`, and scales [rows, groups].
    """
    groups = matrix.view(len(matrix), -1, group)
    scales = _as_stored(_best_scales(groups, torch.ones_like(groups[0])))
    return _rounded(groups, scales[..., None], NIBBLE_LIMIT).flatten(-2), scales


def _making_good(matrix: Tensor, inputs: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Integers [rows, columns] and scales [rows, groups], errors made good in later columns."""
    products = inputs.detach().to("cpu", torch.float64)
    weights = products.diagonal() + DAMPING * products.diagonal().mean()
    weights = torch.where(weights > 0, weights, 1.0)
    inverse = torch.linalg.inv(products - torch.diag(products.diagonal()) + torch.diag(weights))
    upper = torch.linalg.cholesky(inverse, upper=True)
    left, integers = matrix.clone(), torch.empty_like(matrix)
    stored = _as_stored(_best_scales(matrix.view(len(matrix), -1, group), weights.view(-1, group)))
    scales: list[Tensor] = []
    for first in range(0, matrix.shape[1], group):
        part = slice(first, first + group)
        of_group = _best_scales(left[:, None, part], weights[None, part])
        scales.append(of_group[:, 0].to(stored.dtype))
        for column in range(first, first + group):
            integers[:, column] = _rounded(left[:, column], scales[-1], NIBBLE_LIMIT)
            error = (left[:, column] - integers[:, column] * scales[-1].double()) / upper[column, column]
            left[:, column + 1 :] -= torch.outer(error, upper[column, column + 1 :])
    return integers, torch.stack(scales, dim=1)


def _best_scales(groups: Tensor, weights: Tensor) -> Tensor:
    """Scales [rows, groups] of least squared error, weighted by [groups, columns of a group]."""
    largest = groups.abs().amax(-1)
    best, least = torch.zeros_like(largest), torch.full_like(largest, torch.inf)
    for cut in CUTS:
        tried = _as_stored(cut * largest / NIBBLE_LIMIT).to(groups.dtype)
        errors = _rounded(groups, tried[..., None], NIBBLE_LIMIT) * tried[..., None] - groups
        loss = (errors.square() * weights).sum(-1)
        best, least = torch.where(loss < least, tried, best), torch.minimum(loss, least)
    return best


def restore(scaled: Scaled, dtype: torch.dtype) -> Tensor:
    """The matrix [rows, columns] that the integers stand for."""
    integers, scales = scaled.integers, scaled.scales.float()
    if integers.dtype == torch.int8:
        return (integers.float() * scales[:, None]).to(dtype)
    nibbles = torch.stack((integers & 15, integers >> 4), dim=-1).flatten(-2).float() - NIBBLE_ZERO
    return (nibbles.view(*scales.shape, -1) * scales[..., None]).flatten(-2).to(dtype)


def _rounded(values: Tensor, scales: Tensor, limit: int) -> Tensor:
    wide = scales.to(values.dtype)
    return (values / torch.where(wide > 0, wide, 1.0)).round().clamp(-limit, limit)


def _as_stored(scales: Tensor) -> Tensor:
    """In 16 bits where all of them keep their digits there, else in 32."""
    used = scales[scales > 0]
    fits = bool(((used >= HALF_SMALLEST) & (used <= HALF_LARGEST)).all())
    return scales.to(torch.float16 if fits else torch.float32)
