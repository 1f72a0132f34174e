"""The same in Triton: what is committed is read once for a seat's rows, the tree by each row alone.

Splits that end in front of the anchor are those of a seat that attends as chains do. The one or two splits
that hold a path are computed again for each row, with the key of its own ancestor at every position, through
the same blocks. So a row is bitwise the row of its chain.
"""

# ruff: noqa: PLR0913, PLR0917, N803 - Triton's own language
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import itertools

import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.slots.fused import (
    SPAN,
    SPLIT,
    SlotOps,
    attend_splits,
    join_splits,
    over_blocks,
    place_rows,
    tile_of,
)
from reference_mechanisms.kernels.slots.packing import SlotStand
from reference_mechanisms.kernels.slots.trees import Moved, SlotTreeKernels, SlotTrees, SlotTreeStand
from reference_mechanisms.kernels.step.following import follow_on, how, precede
from reference_mechanisms.kernels.step.twin import Seen

ENDS = 2  # splits that a path of up to `SPLIT` rows can lie in


@triton.jit
def _attend_paths(
    queries, row_stride, place, row_slots, row_seats, starts, depths, paths, parts, capacity, splits, seats,
    scale,
    GROUPED: tl.constexpr, LEVELS: tl.constexpr, DIM: tl.constexpr, CELLS: tl.constexpr, SPAN: tl.constexpr,
    SPLIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    row, head, end_of = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    kv_heads = tl.num_programs(1)
    cell, dims = tl.arange(0, CELLS), tl.arange(0, DIM)
    follow_on(PDL)
    slot, fresh = tl.load(row_slots + row), tl.load(starts + row)
    last = (fresh + tl.load(depths + row) + 1).to(tl.int32)
    split = (fresh // SPLIT + end_of).to(tl.int32)
    begin = split * SPLIT
    end = tl.minimum(begin + SPLIT, last)
    if (tl.load(row_seats + row) < seats) & (begin < end):
        own = cell < GROUPED
        member = head * GROUPED + cell % GROUPED
        query = tl.load(
            queries + row * row_stride + member[:, None] * DIM + dims[None], mask=own[:, None], other=0.0
        )
        base = place + (slot * 2 * kv_heads + head) * capacity * DIM
        behind = kv_heads * capacity.to(tl.int64) * DIM
        low = 0 * cell
        high = tl.where(own, last, 0)
        best, total, found = over_blocks(
            query, base, behind, begin, end, 0, last, low, high, fresh, paths + row * LEVELS, scale,
            LEVELS, CELLS, DIM, SPAN,
        )  # fmt: skip
        at = ((row * kv_heads + head) * GROUPED + cell % GROUPED) * splits + split
        tl.store(parts + at[:, None] * (DIM + 2) + dims[None], found, mask=own[:, None])
        tl.store(parts + at * (DIM + 2) + DIM, best, mask=own)
        tl.store(parts + at * (DIM + 2) + DIM + 1, total, mask=own)


@triton.jit
def _move_slots(
    first, stride, slots, starts, paths, capacity,
    LEVELS: tl.constexpr, RANGE: tl.constexpr, DIM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    layer, head, seat = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    heads = tl.num_programs(1)
    index, dims = tl.arange(0, RANGE), tl.arange(0, DIM)
    mine = index < LEVELS
    follow_on(PDL)
    slot, start = tl.load(slots + seat), tl.load(starts + seat)
    place = first + layer * stride + (slot * heads + head) * capacity * DIM
    source = tl.load(paths + seat * LEVELS + index, mask=mine, other=0)
    moves = mine & (source != index)
    rows = tl.load(place + (start + source)[:, None] * DIM + dims[None], mask=moves[:, None], other=0.0)
    tl.debug_barrier()  # everything is read before anything is written
    tl.store(place + (start + index)[:, None] * DIM + dims[None], rows, mask=moves[:, None])


class SlotTreeOps(SlotOps):
    """`targets.layer_ops.LayerOps` of the trees of many requests."""

    def __init__(self, stand: SlotTreeStand) -> None:
        """Of one forward."""
        super().__init__(stand.stand)
        self._trees = stand.trees

    def attend(self, layer: int, qkv: Tensor, qk_norm: Tensor | None) -> Tensor:
        """As in `LayerOps`."""
        stand = self._slots
        place = stand.places[layer]
        place_rows(qkv, qk_norm, stand, self._trees.cells, place)
        return attend(qkv[:, : qkv.shape[1] - place.shape[1]], place, stand, self._trees)


def attend(queries: Tensor, place: Tensor, stand: SlotStand, trees: SlotTrees) -> Tensor:
    """Attention of queries [rows, heads, head_dim] over a layer's cache, [rows, heads x head_dim].

    Padding gives zeros.
    """
    rows, heads, dim = queries.shape
    kv_heads, capacity, packed = place.shape[1] // 2, place.shape[2], stand.packed
    grouped, levels = heads // kv_heads, trees.paths.shape[1]
    if levels > SPLIT:
        raise ValueError(f"paths of {levels} rows; the kernel takes {SPLIT} at most")
    committed = stand._replace(seen=Seen(stand.seen.low, trees.starts))
    parts = attend_splits(queries, place, committed)
    _attend_paths[(rows, kv_heads, ENDS)](
        queries, queries.stride(0), place, packed.row_slots, packed.seats, trees.starts, trees.depths,
        trees.paths, parts, capacity, parts.shape[2], len(packed.slots), dim**-0.5,
        GROUPED=grouped, LEVELS=levels, DIM=dim, CELLS=tile_of(grouped), SPAN=SPAN, SPLIT=SPLIT,
        **how(queries.device),
    )  # fmt: skip
    return join_splits(parts, stand, queries)


def move(places: tuple[Tensor, ...], moved: Moved) -> None:
    """As `trees.move`; the places of the layers lie at equal distances."""
    first, levels = places[0], moved.paths.shape[1]
    steps = {two.storage_offset() - one.storage_offset() for one, two in itertools.pairwise(places)}
    if len(steps) > 1:
        raise ValueError(f"places of layers lie {sorted(steps)} numbers apart; give those of one cache")
    _, heads, capacity, dim = first.shape
    _move_slots[(len(places), heads, len(moved.slots))](
        first, max(steps, default=0), moved.slots, moved.starts, moved.paths, capacity,
        LEVELS=levels, RANGE=triton.next_power_of_2(levels), DIM=dim, num_warps=1, **how(first.device),
    )  # fmt: skip


SLOT_TREES = SlotTreeKernels(SlotTreeOps, move)
