"""Softmax cross entropy of one row at a time in Triton: logits are replaced by their gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096  # columns at a time


@triton.jit
def _kernel(logits, labels, weights, losses, hits, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * columns
    label = tl.load(labels + row)
    weight = tl.load(weights + row)
    wanted = tl.load(base + label).to(tl.float32)
    best = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        index = start + tl.arange(0, BLOCK)
        value = tl.load(base + index, mask=index < columns, other=-1e30).to(tl.float32)
        higher = tl.maximum(best, value)
        total = total * tl.exp(best - higher) + tl.exp(value - higher)
        best = higher
    top = tl.max(best, 0)
    mass = tl.sum(total * tl.exp(best - top), 0)
    tl.store(losses + row, (top + tl.log(mass) - wanted) * weight)
    tl.store(hits + row, wanted >= top)
    for start in range(0, columns, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < columns
        value = tl.load(base + index, mask=inside, other=-1e30).to(tl.float32)
        share = tl.exp(value - top) / mass
        share = tl.where(index == label, share - 1.0, share)
        tl.store(base + index, (share * weight).to(logits.dtype.element_ty), mask=inside)


def softmax_gradient_(logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Overwrite logits by weight x (softmax - one-hot).

    Args:
        logits: [rows, vocabulary], contiguous.
        labels: token ids [rows].
        weights: float32 [rows].

    Returns:
        Weighted losses [rows] in float32, and whether each label has the largest logit, bool [rows].
    """
    rows, columns = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    hits = torch.empty(rows, dtype=torch.int8, device=logits.device)
    _kernel[(rows,)](logits, labels, weights, losses, hits, columns, BLOCK=_BLOCK, num_warps=8)
    return losses, hits.bool()
