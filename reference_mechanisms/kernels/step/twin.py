"""Writing and reading a cache at positions that only the device knows, in plain torch.

A row sees the positions from `low` up to `high` of its own. Everything has a fixed shape: each row looks
at the whole buffer, and what it does not see is masked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.targets.attention import attend_rows
from reference_mechanisms.targets.layer_ops import TorchOps, rms_norm
from reference_mechanisms.targets.rope import rotate_


class Seen(NamedTuple):
    """The positions that each row sees; at least one."""

    low: Tensor  # [rows], int64
    high: Tensor  # [rows], one behind the last


# (queries [rows, heads, head_dim], place [2 x kv_heads, capacity, head_dim], seen) -> as `attend`
Attend = Callable[[Tensor, Tensor, Seen], Tensor]


class Ways(NamedTuple):
    """What the kernels of a step can do in more than one way, each the same for all arms; torch has one way.

    The bits are the same too, but for `gates`, whose exponential is another.
    """

    joins: bool = False  # the last part of an attention to end joins the others; else one more launch does
    # What earlier forwards wrote is read while the launch in front still runs. Right only if between two
    # forwards, and behind the positions of this one, lies a launch that does not overlap (a torch operation).
    early: bool = False
    fetch: int = 0  # MiB of the next product's weights that attention brings into L2, where it knows them
    gates: bool = False  # gates open in the launch of their product; needs weights that are loaded for it


WAYS = Ways()  # until a run of `engine bench` has compared them


class Stand(NamedTuple):
    """Where the rows of a target's forward stand."""

    positions: Tensor  # [rows], int64, consecutive
    seen: Seen  # by each row
    rotations: Tensor  # of all positions, `targets.rope.rotation_table`
    places: tuple[Tensor, ...]  # cache of each layer, [2 x kv_heads, capacity, head_dim]
    eps: float  # of the norms
    tickets: Tensor | None = None  # `new_tickets`, for `Ways.joins`; used by one launch at a time


def new_tickets(rows: int, kv_heads: int, device: torch.device) -> Tensor:
    """Zeros that parts of an attention count up as they end; the last to end sets them back."""
    return torch.zeros(rows * kv_heads, dtype=torch.int32, device=device)


def torch_ops(stand: Stand) -> TorchOps:
    """`targets.layer_ops.LayerOps` of these rows."""

    def attention(layer: int, qkv: Tensor) -> Tensor:
        place = stand.places[layer]
        heads = qkv.shape[1] - len(place)
        write(place, stand.positions, qkv[:, heads:])
        return attend(qkv[:, :heads], place, stand.seen)

    kv_heads = len(stand.places[0]) // 2
    return TorchOps(stand.eps, kv_heads, stand.rotations[stand.positions], attention)


def write(place: Tensor, positions: Tensor, keys_and_values: Tensor) -> None:
    """Put rows into one layer's cache.

    Args:
        place: [2 x kv_heads, capacity, head_dim], keys before values.
        positions: [rows], int64, all different.
        keys_and_values: [rows, 2 x kv_heads, head_dim].
    """
    place.index_copy_(1, positions, keys_and_values.transpose(0, 1))


def keep(rows: Tensor, norms: Tensor | None, stand: Stand) -> None:
    """Put keys and values of several layers into their caches, keys normed and rotated.

    Args:
        rows: [rows, layers, 2 x kv_heads, head_dim], keys before values; may be overwritten.
        norms: weights [layers, kv_heads, head_dim] of the norm per key head, if there is one.
        stand: where the rows stand; a place for each layer.
    """
    rotations = stand.rotations[stand.positions]
    for layer, place in enumerate(stand.places):
        both = rows[:, layer]
        keys = both[:, : len(place) // 2]
        if norms is not None:
            keys.copy_(rms_norm(keys, norms[layer], stand.eps))
        rotate_(keys, rotations)
        write(place, stand.positions, both)


def best(logits: Tensor) -> Tensor:
    """The first of the largest of each row of [rows, columns], int64 [rows]."""
    return logits.argmax(-1)


def attend(queries: Tensor, place: Tensor, seen: Seen) -> Tensor:
    """Attention of each row over the positions it sees.

    Args:
        queries: [rows, heads, head_dim].
        place: [2 x kv_heads, capacity, head_dim]; whatever no row sees must be finite.
        seen: by each row.

    Returns:
        [rows, heads x head_dim].
    """
    index = torch.arange(place.shape[1], device=place.device)
    hidden = (index < seen.low[:, None]) | (index >= seen.high[:, None])
    mask = torch.zeros(hidden.shape, dtype=queries.dtype, device=place.device)
    mask.masked_fill_(hidden, -torch.inf)
    keys, values = place[None].expand(len(queries), -1, -1, -1).chunk(2, dim=1)
    return attend_rows(queries, keys, values, mask[:, None, None])
