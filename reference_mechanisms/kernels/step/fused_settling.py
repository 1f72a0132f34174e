"""The end of a step in Triton: the vocabulary is cut at fixed places, one program joins its parts."""

# ruff: noqa: PLR0913, PLR0917, N803 - Triton's own language
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.step.following import follow_on, how, precede
from reference_mechanisms.kernels.step.replaying import Recording
from reference_mechanisms.kernels.step.settling import Turn

PART = 2048  # columns of one program


@triton.jit
def _best(logits, tops, places, size, row_stride, PART: tl.constexpr, PDL: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    precede(PDL)
    columns = part * PART + tl.arange(0, PART)
    follow_on(PDL)
    found = tl.load(logits + row * row_stride + columns, mask=columns < size, other=float("-inf"))
    wide = found.to(tl.float32)
    wide = tl.where(wide == wide, wide, float("inf"))  # noqa: PLR0124 - false for what is no number
    top, place = tl.max(wide, 0, return_indices=True, return_indices_tie_break_left=True)
    at = row * tl.num_programs(1) + part
    tl.store(tops + at, top)
    tl.store(places + at, part * PART + place)


@triton.jit
def _settle(
    tops, places, state, choices, before, accepted, report, parts, drafts,
    ROWS: tl.constexpr, RANGE: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    precede(PDL)
    row, part = tl.arange(0, RANGE), tl.arange(0, PARTS)
    real = row < ROWS
    cells = (request * ROWS + row[:, None]) * parts + part[None]
    known = real[:, None] & (part[None] < parts)
    mine = state + request * (ROWS + 3)
    follow_on(PDL)
    best = tl.load(tops + cells, mask=known, other=float("-inf"))
    top, which = tl.max(best, 1, return_indices=True, return_indices_tie_break_left=True)
    where = tl.load(places + cells, mask=known, other=0)
    choice = tl.sum(tl.where(part[None] == which[:, None], where, 0), 1).to(tl.int64)
    finite = ((top < float("inf")) & (top > float("-inf"))).to(tl.int64)
    ids = tl.load(mine + row, mask=real, other=0)
    behind = tl.load(mine + row + 1, mask=row + 1 < ROWS, other=-1)
    start, drafted = tl.load(mine + ROWS), tl.load(mine + ROWS + 1)
    limit = tl.load(mine + ROWS + 2)
    tl.debug_barrier()  # every thread has read the state
    right = (behind == choice) & (row < drafted) & (row + 1 < ROWS)
    count = tl.min(tl.where(right, RANGE, row), 0).to(tl.int64)
    out = report + request * (3 * ROWS + 2)
    tl.store(out, start)
    tl.store(out + 1, drafted)
    tl.store(out + 2 + row, ids, mask=real)
    tl.store(out + 2 + ROWS + row, choice, mask=real)
    tl.store(out + 2 + 2 * ROWS + row, finite, mask=real)
    tl.store(choices + request * ROWS + row, choice, mask=real)
    tl.store(before + request, start)
    tl.store(accepted + request, count)
    left = limit - count - 1
    tl.store(mine + ROWS, start + count + 1)
    tl.store(mine + ROWS + 1, tl.minimum(tl.maximum(left, 0), drafts))
    tl.store(mine + ROWS + 2, left)
    tl.store(mine, tl.sum(tl.where(row == count, choice, 0), 0))


@triton.jit
def _join_best(tops, places, out, parts, PARTS: tl.constexpr, PDL: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
    precede(PDL)
    known = part < parts
    follow_on(PDL)
    best = tl.load(tops + row * parts + part, mask=known, other=float("-inf"))
    _, which = tl.max(best, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(out + row, tl.load(places + row * parts + which).to(tl.int64))


@triton.jit
def _replay(
    start, tokens, counts, turn, out, drafts, positions, steps, vocabulary,
    RANGE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    index = tl.arange(0, RANGE)
    mine = index < drafts
    follow_on(PDL)
    at, step = tl.load(start), tl.load(turn)
    tl.debug_barrier()  # every thread has read the turn
    count = tl.load(counts + tl.minimum(step, steps - 1))
    known = tl.load(tokens + tl.minimum(at + 1 + index, positions - 1), mask=mine, other=0)
    tl.store(out + index, tl.where(index < count, known, (known + 1) % vocabulary), mask=mine)
    tl.store(turn, step + 1)


def settle(logits: Tensor, turn: Turn, drafts: int) -> None:
    """As `settling.settle`."""
    tops, places = _parts(logits)
    parts = tops.shape[1]
    _settle[(len(turn.state),)](
        tops, places, turn.state, turn.choices, turn.before, turn.accepted, turn.report, parts, drafts,
        ROWS=turn.rows, RANGE=triton.next_power_of_2(turn.rows), PARTS=triton.next_power_of_2(parts),
        num_warps=8, **how(logits.device),
    )  # fmt: skip


def best(logits: Tensor) -> Tensor:
    """As `twin.best`."""
    tops, places = _parts(logits)
    parts = tops.shape[1]
    out = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    options = how(logits.device)
    _join_best[(len(logits),)](
        tops, places, out, parts, PARTS=triton.next_power_of_2(parts), num_warps=1, **options
    )
    return out


def replay(made: Tensor, start: Tensor, recording: Recording, vocabulary: int, out: Tensor) -> None:
    """As `replaying.replay`."""
    drafts, (tokens, counts, turn) = len(made), recording
    _replay[(1,)](
        start, tokens, counts, turn, out, drafts, len(tokens), len(counts), vocabulary,
        RANGE=triton.next_power_of_2(drafts), num_warps=1, **how(made.device),
    )  # fmt: skip


def _parts(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Largest number of each part of each row and its column, [rows, parts]."""
    rows, size = logits.shape
    parts = -(-size // PART)
    tops = torch.empty((rows, parts), dtype=torch.float32, device=logits.device)
    places = torch.empty((rows, parts), dtype=torch.int32, device=logits.device)
    _best[(rows, parts)](
        logits, tops, places, size, logits.stride(0), PART=PART, num_warps=4, **how(logits.device)
    )
    return tops, places
