"""Draft trees of many requests whose rows lie packed, in plain torch: layout, attention, and what is kept.

As `kernels.step.trees` for one request: a seat's rows lie one behind the other in its slot, behind what is
committed, and each row sees the key of its own ancestor at every position, as its chain has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.kernels.slots.packing import Packed, SlotStand, chains
from reference_mechanisms.targets.attention import attend_rows
from reference_mechanisms.targets.layer_ops import LayerOps, TorchOps


class SlotTrees(NamedTuple):
    """Of the rows of a step; int64. Rows of padding are trees of one row."""

    cells: Tensor  # [rows]: where a row lies in its slot
    starts: Tensor  # [rows]: position of its anchor
    depths: Tensor  # [rows]: steps from the anchor
    paths: (
        Tensor  # [rows, levels + 1]: row of the seat at each depth on the way; the row itself behind its own
    )


class SlotTreeStand(NamedTuple):
    """Where the rows of a forward stand; positions are those of the rows in their chains."""

    stand: SlotStand
    trees: SlotTrees


class Moved(NamedTuple):
    """Rows that come together behind what was committed; int64. A path that is 0, 1, .. moves nothing."""

    slots: Tensor  # [seats]
    starts: Tensor  # [seats]: position of the first
    paths: Tensor  # [seats, levels + 1]: row j of the slot becomes what row paths[j] was


class SlotTreeKernels(NamedTuple):
    """One way to compute what a step of trees does beside its products."""

    ops: Callable[[SlotTreeStand], LayerOps]
    move: Callable[[tuple[Tensor, ...], Moved], None]


def lay(packed: Packed, parents: Tensor, levels: int) -> SlotTrees:
    """Depths and paths from the parents.

    Args:
        packed: as `packing.pack` has it.
        parents: of each row, a row of its seat; any number for the first of a seat, [rows].
        levels: of the deepest tree, at most.
    """
    row = torch.arange(len(parents), device=parents.device)
    first = row - packed.inside
    above = torch.where(packed.inside == 0, row, first + parents.clamp_min(0))
    up = [row]
    for _ in range(levels):
        up.append(above[up[-1]])
    climbed = torch.stack(up, 1) - first[:, None]  # the row itself, its parent, .., the anchor for ever
    depths = (climbed != 0).sum(1)
    steps = depths[:, None] - torch.arange(levels + 1, device=parents.device)
    paths = climbed.gather(1, steps.clamp_min(0))
    return SlotTrees(packed.positions, packed.positions - packed.inside, depths, paths)


def tree_ops(stand: SlotTreeStand) -> TorchOps:
    """`targets.layer_ops.LayerOps` of these rows; on a CPU each row reads as far as it would alone."""
    inner, trees = stand.stand, stand.trees
    place = inner.places[0]
    kv_heads, capacity = place.shape[1] // 2, place.shape[2]
    rotations = inner.rotations[inner.packed.positions]
    column = torch.arange(capacity, device=place.device)
    inside = column - trees.starts[:, None]  # [rows, capacity]
    span = trees.paths.shape[1]
    own = trees.starts[:, None] + trees.paths.gather(1, inside.clamp(0, span - 1))
    source = torch.where((inside >= 0) & (inside < span), own, column)
    hidden = column >= inner.seen.high[:, None]
    mask = torch.zeros(hidden.shape, dtype=place.dtype, device=place.device)
    mask = mask.masked_fill_(hidden, -torch.inf)[:, None, None]
    parts = list(_parts(inner)) if place.device.type == "cpu" else [(slice(0, len(source)), capacity)]

    def attention(layer: int, qkv: Tensor) -> Tensor:
        place, heads = inner.places[layer], qkv.shape[1] - 2 * kv_heads
        by_cell = place.transpose(1, 2)
        slots = inner.packed.row_slots
        by_cell[slots, trees.cells] = qkv[:, heads:]
        out = qkv.new_zeros((len(qkv), heads * qkv.shape[2]))
        for rows, end in parts:
            seen = by_cell[slots[rows, None], source[rows, :end]].transpose(1, 2)
            keys, values = seen.chunk(2, dim=1)
            out[rows] = attend_rows(qkv[rows, :heads], keys, values, mask[rows, ..., :end])
        return out

    return TorchOps(inner.eps, kv_heads, rotations, attention)


def move(places: tuple[Tensor, ...], moved: Moved) -> None:
    """Bring paths together in the cache of every layer.

    Args:
        places: [slots, 2 x kv_heads, capacity, head_dim] each.
        moved: everything is read before anything is written.
    """
    slots = moved.slots[:, None]
    sources = moved.starts[:, None] + moved.paths
    index = torch.arange(sources.shape[1], device=sources.device)
    destinations = moved.starts[:, None] + index
    for place in places:
        by_cell = place.transpose(1, 2)
        by_cell[slots, destinations] = by_cell[slots, sources]


def _parts(stand: SlotStand) -> list[tuple[slice, int]]:
    """Consecutive rows that read equally far, and how far; padding reads nothing."""
    count = int(stand.packed.counts.sum())
    spans = [-(-high // stand.bucket) * stand.bucket for high in stand.seen.high[:count].tolist()]
    found, first = [], 0
    for span, rows in itertools.groupby(spans):
        last = first + len(list(rows))
        found.append((slice(first, last), span))
        first = last
    return found


def tree_stand(stand: SlotStand, trees: SlotTrees) -> SlotTreeStand:
    """Of rows that `lay` has laid out.

    Args:
        stand: of the same rows as chains.
        trees: of them.
    """
    packed = stand.packed._replace(positions=trees.starts + trees.depths)  # those of their chains
    return SlotTreeStand(stand._replace(packed=packed, seen=chains(packed)), trees)


TORCH_SLOT_TREES = SlotTreeKernels(tree_ops, move)
