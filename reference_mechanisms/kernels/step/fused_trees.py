"""Draft trees in Triton: layout, walk, what is kept, and planting; the twin is `trees.py`.

Each is one launch of one program, or of one for each place in the cache: what a tree costs beside its
products is launches, not work.
"""

# ruff: noqa: PLR0913, PLR0917, N803 - Triton's own language
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import itertools

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.step.following import follow_on, how, precede
from reference_mechanisms.kernels.step.fused import FusedOps
from reference_mechanisms.kernels.step.fused_candidates import candidates
from reference_mechanisms.kernels.step.fused_settling import _parts
from reference_mechanisms.kernels.step.fused_tree_attention import attend_tree
from reference_mechanisms.kernels.step.trees import Seeds, TreeKernels, TreeStand, TreeTurn
from reference_mechanisms.kernels.step.twin import Seen, Stand

ANCHOR = tl.constexpr(-1)  # as in `verification.tree`
PADDING = tl.constexpr(-2)


@triton.jit
def _lay(parents, depths, paths, rows, SPAN: tl.constexpr, RANGE: tl.constexpr, PDL: tl.constexpr):
    precede(PDL)
    row = tl.arange(0, RANGE)
    real = row < rows
    follow_on(PDL)
    at, depth = row, tl.zeros([RANGE], tl.int32)
    for _ in tl.static_range(SPAN - 1):
        depth += (at > 0).to(tl.int32)
        at = tl.maximum(tl.load(parents + at, mask=real, other=0), 0).to(tl.int32)
    tl.store(depths + row, depth.to(tl.int64), mask=real)
    at = row
    for step in tl.static_range(SPAN):
        tl.store(paths + row * SPAN + depth - step, at.to(tl.int64), mask=real & (depth >= step))
        tl.store(paths + row * SPAN + step, row.to(tl.int64), mask=real & (depth < step))
        at = tl.maximum(tl.load(parents + at, mask=real, other=0), 0).to(tl.int32)


@triton.jit
def _settle_tree(
    tops, places, state, choices, before, accepted, path, report, parts, rows,
    SPAN: tl.constexpr, RANGE: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    row, part = tl.arange(0, RANGE), tl.arange(0, PARTS)
    real = row < rows
    cells = row[:, None] * parts + part[None]
    known = real[:, None] & (part[None] < parts)
    follow_on(PDL)
    best = tl.load(tops + cells, mask=known, other=float("-inf"))
    top, which = tl.max(best, 1, return_indices=True, return_indices_tie_break_left=True)
    where = tl.load(places + cells, mask=known, other=0)
    choice = tl.sum(tl.where(part[None] == which[:, None], where, 0), 1)
    finite = ((top < float("inf")) & (top > float("-inf"))).to(tl.int64)
    ids = tl.load(state + row, mask=real, other=-1)
    above = tl.load(state + rows + row, mask=real, other=-2)
    start, drafted = tl.load(state + 2 * rows), tl.load(state + 2 * rows + 1)
    limit = tl.load(state + 2 * rows + 2)
    tl.debug_barrier()  # every thread has read the state
    tl.store(path, 0 * start)
    tl.store(report + 3, 0 * start)
    at, count = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    bonus = tl.sum(tl.where(row == 0, choice, 0), 0)
    for level in tl.static_range(1, SPAN):
        fits = (above == at) & (ids == bonus) & real
        step = tl.max(tl.where(fits, row, 0), 0)
        count += (step > 0).to(tl.int32)
        at = tl.where(step > 0, step, at)
        bonus = tl.sum(tl.where(row == at, choice, 0), 0)
        tl.store(path + level, at.to(tl.int64))
        tl.store(report + 3 + level, at.to(tl.int64))
    wide, told = choice.to(tl.int64), report + 3 + SPAN
    tl.store(report, start)
    tl.store(report + 1, drafted)
    tl.store(report + 2, count.to(tl.int64))
    tl.store(told + row, ids, mask=real)
    tl.store(told + rows + row, wide, mask=real)
    tl.store(told + 2 * rows + row, finite, mask=real)
    tl.store(choices + row, wide, mask=real)
    tl.store(before, start)
    tl.store(accepted, count.to(tl.int64))
    tl.store(state + 2 * rows, start + count + 1)
    tl.store(state + 2 * rows + 2, limit - count - 1)
    tl.store(state, bonus.to(tl.int64))


@triton.jit
def _move(
    first, stride, before, path, capacity,
    SPAN: tl.constexpr, RANGE: tl.constexpr, DIM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    layer, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    index, dims = tl.arange(0, RANGE), tl.arange(0, DIM)
    mine = index < SPAN
    place = first + layer * stride + head * capacity * DIM
    follow_on(PDL)
    start = tl.load(before)
    source = start + tl.load(path + index, mask=mine, other=0)
    rows = tl.load(place + source[:, None] * DIM + dims[None], mask=mine[:, None], other=0.0)
    tl.debug_barrier()  # everything is read before anything is written
    tl.store(place + (start + index)[:, None] * DIM + dims[None], rows, mask=mine[:, None])


@triton.jit
def _at(numbers, lane, which):
    """One of the numbers of a vector."""
    return tl.sum(tl.where(lane == which, numbers, 0), 0)


@triton.jit
def _worth(worth, at, known, off, spine):
    """Log-probability of a child, as `growing.grow_levels` takes it."""
    found = tl.load(worth + at, mask=known, other=float("-inf"))
    found = (found + tl.where(spine, 0.0, off).to(found.dtype)).to(tl.float64)
    return tl.where(found <= 0.0, found, tl.where(found > 0.0, 0.0, float("-inf")))


@triton.jit
def _plant(
    ids, worth, off_spine, state, rows, levels, fan,
    NODES: tl.constexpr, RANGE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    lane = tl.arange(0, RANGE)
    follow_on(PDL)
    most = tl.minimum(tl.load(state + 2 * rows + 2), levels).to(tl.int32)
    off = tl.load(off_spine)
    # Of each row: its path's log-probability, its level, its next child, and the path that this one gives.
    path = tl.zeros([RANGE], tl.float64)
    depth = tl.zeros([RANGE], tl.int32)
    # The next child's rank, and above its 16 bits whether only best tokens lead here: one reduction for both.
    held = tl.where(lane == 0, 65536, 0)
    token = tl.zeros([RANGE], tl.int64)
    above = tl.full([RANGE], PADDING, tl.int32)
    ahead = tl.where(lane == 0, _worth(worth, 0, most > 0, off, True), float("-inf"))
    count = 0
    for node in range(1, NODES + 1):
        best = tl.max(ahead, 0)
        # Of equal paths the shallower, then the child of the earlier parent.
        order = tl.where(ahead == best, depth * RANGE + lane, RANGE * RANGE)
        winner = tl.min(order, 0) % RANGE
        if best > float("-inf"):
            its_depth, its_path = tl.min(order, 0) // RANGE, _at(path, lane, winner)
            its_held = _at(held, lane, winner)
            its_rank, its_spine = its_held % 65536, its_held // 65536
            at = its_depth * fan + its_rank
            token = tl.where(lane == node, tl.load(ids + at), token)
            above = tl.where(lane == node, winner, above)
            depth = tl.where(lane == node, its_depth + 1, depth)
            path = tl.where(lane == node, best, path)
            follows = its_spine * (its_rank == 0).to(tl.int32)
            held = tl.where(lane == node, follows * 65536, tl.where(lane == winner, its_held + 1, held))
            sibling = its_path + _worth(worth, at + 1, its_rank + 1 < fan, off, its_spine > 0)
            child = best + _worth(worth, (its_depth + 1) * fan, its_depth + 1 < most, off, follows > 0)
            ahead = tl.where(lane == winner, sibling, tl.where(lane == node, child, ahead))
            count += 1
    real = (lane > 0) & (lane < rows)
    tl.store(state + lane, token, mask=real)
    tl.store(state + rows + lane, tl.where(lane == 0, ANCHOR, above).to(tl.int64), mask=lane < rows)
    tl.store(state + 2 * rows + 1, count + 0 * tl.load(state))


class FusedTreeOps(FusedOps):
    """`targets.layer_ops.LayerOps` of a tree's rows."""

    def __init__(self, stand: TreeStand) -> None:
        """Of one forward."""
        positions = stand.start + stand.depths
        seen = Seen(torch.zeros_like(positions), positions + 1)
        super().__init__(Stand(positions, seen, stand.rotations, stand.places, stand.eps))
        self._tree, self._seen = stand, seen

    def attend(self, layer: int, qkv: Tensor, qk_norm: Tensor | None) -> Tensor:
        """As in `LayerOps`."""
        return attend_tree(qkv, qk_norm, self._tree, self._seen, self._tree.places[layer])


def lay(turn: TreeTurn) -> None:
    """As `trees.lay`."""
    span = turn.paths.shape[1]
    _lay[(1,)](
        turn.parents, turn.depths, turn.paths, turn.rows,
        SPAN=span, RANGE=triton.next_power_of_2(turn.rows), num_warps=1, **how(turn.state.device),
    )  # fmt: skip


def settle(logits: Tensor, turn: TreeTurn) -> None:
    """As `trees.settle`."""
    tops, places = _parts(logits)
    parts = tops.shape[1]
    _settle_tree[(1,)](
        tops, places, turn.state, turn.choices, turn.before, turn.accepted, turn.path, turn.report, parts,
        turn.rows, SPAN=turn.paths.shape[1], RANGE=triton.next_power_of_2(turn.rows),
        PARTS=triton.next_power_of_2(parts), num_warps=8, **how(logits.device),
    )  # fmt: skip


def move(places: tuple[Tensor, ...], turn: TreeTurn) -> None:
    """As `trees.move`; the places of the layers lie at equal distances."""
    first, span = places[0], len(turn.path)
    steps = {two.storage_offset() - one.storage_offset() for one, two in itertools.pairwise(places)}
    if len(steps) > 1:
        raise ValueError(f"places of layers lie {sorted(steps)} numbers apart; give those of one cache")
    heads, capacity, dim = first.shape
    _move[(len(places), heads)](
        first, max(steps, default=0), turn.before, turn.path, capacity,
        SPAN=span, RANGE=triton.next_power_of_2(span), DIM=dim, num_warps=1, **how(first.device),
    )  # fmt: skip


def plant(seeds: Seeds, nodes: int, turn: TreeTurn) -> None:
    """As `trees.plant`."""
    levels, fan = seeds.token_ids.shape
    _plant[(1,)](
        seeds.token_ids, seeds.worth, seeds.off_spine, turn.state, turn.rows, levels, fan,
        NODES=nodes, RANGE=triton.next_power_of_2(turn.rows), num_warps=1, **how(turn.state.device),
    )  # fmt: skip


TREES = TreeKernels(FusedTreeOps, lay, settle, move, plant, candidates)
