"""Softmax cross entropy of one row at a time in Triton: logits are replaced by their gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096  # columns at a time


@triton.jit
def _kernel(
    logits,
    labels,
    weights,
    losses,
    hits,
    taught,
    normals,
    share,
    columns,
    BLOCK: tl.constexpr,
    SOFT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * columns
    soft = taught + row * columns
    label = tl.load(labels + row)
    weight = tl.load(weights + row)
    wanted = tl.load(base + label).to(tl.float32)
    best = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    expected = tl.zeros([BLOCK], tl.float32)
    if SOFT:
        normal = tl.load(normals + row)
    for start in range(0, columns, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < columns
        value = tl.load(base + index, mask=inside, other=-1e30).to(tl.float32)
        higher = tl.maximum(best, value)
        total = total * tl.exp(best - higher) + tl.exp(value - higher)
        best = higher
        if SOFT:
            theirs = tl.load(soft + index, mask=inside, other=-1e30).to(tl.float32)
            expected += tl.where(inside, tl.exp(theirs - normal) * value, 0.0)
    top = tl.max(best, 0)
    mass = tl.sum(total * tl.exp(best - top), 0)
    aim = wanted
    if SOFT:
        aim = (1 - share) * wanted + share * tl.sum(expected, 0)
    tl.store(losses + row, (top + tl.log(mass) - aim) * weight)
    tl.store(hits + row, wanted >= top)
    for start in range(0, columns, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < columns
        value = tl.load(base + index, mask=inside, other=-1e30).to(tl.float32)
        gradient = tl.exp(value - top) / mass
        if SOFT:
            theirs = tl.load(soft + index, mask=inside, other=-1e30).to(tl.float32)
            gradient -= share * tl.exp(theirs - normal)
            gradient = tl.where(index == label, gradient - (1 - share), gradient)
        else:
            gradient = tl.where(index == label, gradient - 1.0, gradient)
        tl.store(base + index, (gradient * weight).to(logits.dtype.element_ty), mask=inside)


@triton.jit
def _normal_kernel(logits, normals, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * columns
    best = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        index = start + tl.arange(0, BLOCK)
        value = tl.load(base + index, mask=index < columns, other=-1e30).to(tl.float32)
        higher = tl.maximum(best, value)
        total = total * tl.exp(best - higher) + tl.exp(value - higher)
        best = higher
    top = tl.max(best, 0)
    tl.store(normals + row, top + tl.log(tl.sum(total * tl.exp(best - top), 0)))


def softmax_gradient_(
    logits: Tensor, labels: Tensor, weights: Tensor, taught: tuple[Tensor, Tensor, float] | None = None
) -> tuple[Tensor, Tensor]:
    """Overwrite logits by weight x (softmax - aim).

    Args:
        logits: [rows, vocabulary], contiguous.
        labels: token ids [rows].
        weights: float32 [rows].
        taught: logits of a teacher [rows, vocabulary], their `row_normals`, and s: the aim is s of the
            teacher's distribution and 1 - s of the label. None: the label alone.

    Returns:
        Weighted losses [rows] in float32, and whether each label has the largest logit, bool [rows].
    """
    rows, columns = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    hits = torch.empty(rows, dtype=torch.int8, device=logits.device)
    theirs, normals, share = (logits, losses, 0.0) if taught is None else taught
    _kernel[(rows,)](
        logits, labels, weights, losses, hits, theirs, normals, float(share), columns,
        BLOCK=_BLOCK, SOFT=taught is not None, num_warps=8,
    )  # fmt: skip
    return losses, hits.bool()


def row_normals(logits: Tensor) -> Tensor:
    """Logarithm of the sum of exponentials of each row, float32 [rows].

    Args:
        logits: [rows, vocabulary], contiguous.
    """
    normals = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    _normal_kernel[(len(logits),)](logits, normals, logits.shape[1], BLOCK=_BLOCK, num_warps=8)
    return normals
