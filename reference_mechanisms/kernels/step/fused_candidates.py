"""The best tokens of rows of logits with their log-probabilities, in Triton.

The vocabulary is cut at fixed places; a number and its column are one key, so that equal logits have
an order.
"""

# ruff: noqa: PLR0913, PLR0917, N803 - Triton's own language
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.step.following import follow_on, how, precede

PART = 2048  # columns of one program


@triton.jit
def _key(wide, column):
    """Whole numbers in the order of the numbers, and of equal ones the first column the largest."""
    bits = wide.to(tl.int32, bitcast=True)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (order.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)


@triton.jit
def _best_of_part(
    logits, keys, tops, sums, size, row_stride,
    COUNT: tl.constexpr, PART: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * PART + tl.arange(0, PART)
    follow_on(PDL)
    found = tl.load(logits + row * row_stride + column, mask=column < size, other=float("-inf"))
    wide = found.to(tl.float32)
    top = tl.max(wide, 0)
    at = row * tl.num_programs(1) + part
    tl.store(tops + at, top)
    tl.store(sums + at, tl.sum(tl.exp(wide - top), 0))
    tl.store(keys + at * COUNT + tl.arange(0, COUNT), tl.topk(_key(wide, column), COUNT))


@triton.jit
def _best_of_row(
    keys, tops, sums, ids, worth, parts, count,
    COUNT: tl.constexpr, KEYS: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    row = tl.program_id(0).to(tl.int64)
    index, part, rank = tl.arange(0, KEYS), tl.arange(0, PARTS), tl.arange(0, COUNT)
    follow_on(PDL)
    found = tl.load(keys + row * parts * COUNT + index, mask=index < parts * COUNT, other=-(1 << 63))
    best = tl.topk(found, COUNT)
    top = tl.load(tops + row * parts + part, mask=part < parts, other=float("-inf"))
    share = tl.load(sums + row * parts + part, mask=part < parts, other=0.0)
    highest = tl.max(top, 0)
    whole = highest + tl.log(tl.sum(tl.exp(top - highest) * share, 0))
    order = (best >> 32).to(tl.int32)
    value = (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    column = 0x7FFFFFFF - (best & 0x7FFFFFFF).to(tl.int32)
    tl.store(ids + row * count + rank, column.to(tl.int64), mask=rank < count)
    tl.store(worth + row * count + rank, value - whole, mask=rank < count)


def candidates(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As `trees.candidates`."""
    rows, size = logits.shape
    # Two at least: the interpreter cannot take one.
    parts, wanted = -(-size // PART), max(2, triton.next_power_of_2(count))
    device = logits.device
    keys = torch.empty((rows, parts, wanted), dtype=torch.int64, device=device)
    tops, sums = torch.empty((2, rows, parts), dtype=torch.float32, device=device)
    ids = torch.empty((rows, count), dtype=torch.int64, device=device)
    worth = torch.empty((rows, count), dtype=torch.float32, device=device)
    _best_of_part[(rows, parts)](
        logits, keys, tops, sums, size, logits.stride(0),
        COUNT=wanted, PART=PART, num_warps=8, **how(device),
    )  # fmt: skip
    _best_of_row[(rows,)](
        keys, tops, sums, ids, worth, parts, count, COUNT=wanted,
        KEYS=triton.next_power_of_2(parts * wanted), PARTS=triton.next_power_of_2(parts), num_warps=8,
        **how(device),
    )  # fmt: skip
    return ids, worth
