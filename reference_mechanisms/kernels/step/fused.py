"""The same in Triton, each row a program of its own: what runs with it changes no bit of a row.

Sums run in float32, and roundings are where the torch code has them (`targets/layer_ops.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.step.following import follow_on, how, precede
from reference_mechanisms.kernels.step.fused_layer_attention import attend_layer
from reference_mechanisms.kernels.step.twin import WAYS, Stand, Ways

GATED = 512  # columns of one program
WIDE = 2048  # columns above which a norm takes more warps
TYPES = (torch.bfloat16, torch.float16, torch.float32)


def fits(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernels take this type and head size."""
    return dtype in TYPES and 32 <= head_dim <= 256 and head_dim & (head_dim - 1) == 0


@triton.jit
def _add_norm(
    hidden, delta, weight, summed, normed, size, eps,
    ADDS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = columns < size
    at = row * size + columns
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    follow_on(PDL)
    x = tl.load(hidden + at, mask=inside, other=0.0)
    if ADDS:
        x = (x.to(tl.float32) + tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(summed + at, x, mask=inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    rounded = (wide * scale).to(x.dtype).to(tl.float32)
    tl.store(normed + at, (rounded * gain).to(x.dtype), mask=inside)


@triton.jit
def turned_head(
    first, second, gains, head, table, position, eps, HALF: tl.constexpr, NORMS: tl.constexpr
):  # fmt: skip
    """One head, in halves of [HALF], after its norm if it has one and the rotation of its position.

    `gains` are [heads, 2 * HALF]; `table` holds cosines and sines, [positions, 2, 2 * HALF].
    """
    low = tl.arange(0, HALF)
    high = low + HALF
    kind = first.dtype
    if NORMS:
        one, two = first.to(tl.float32), second.to(tl.float32)
        mean = (tl.sum(one * one, 0) + tl.sum(two * two, 0)) / (2 * HALF)
        scale = tl.rsqrt(mean + eps)
        gain = gains + head * 2 * HALF
        one, two = (one * scale).to(kind).to(tl.float32), (two * scale).to(kind).to(tl.float32)
        first = (one * tl.load(gain + low).to(tl.float32)).to(kind)
        second = (two * tl.load(gain + high).to(tl.float32)).to(kind)
    cosines = table + position * 4 * HALF
    sines = cosines + 2 * HALF
    one, two = first.to(tl.float32), second.to(tl.float32)
    straight = (one * tl.load(cosines + low).to(tl.float32)).to(kind).to(tl.float32)
    across = (two * tl.load(sines + low).to(tl.float32)).to(kind).to(tl.float32)
    first = (straight + across).to(kind)
    straight = (two * tl.load(cosines + high).to(tl.float32)).to(kind).to(tl.float32)
    across = (one * tl.load(sines + high).to(tl.float32)).to(kind).to(tl.float32)
    second = (straight + across).to(kind)
    return first, second


@triton.jit
def _rotate_write(
    rows, row_stride, layer_heads, gains, table, positions, place, place_stride, capacity, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, NORMS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    row, head, layer = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2).to(tl.int64)
    low = tl.arange(0, HALF)
    high = low + HALF
    at = rows + row * row_stride + (layer * layer_heads + head) * 2 * HALF
    follow_on(PDL)
    first, second = tl.load(at + low), tl.load(at + high)
    position = tl.load(positions + row)
    if head < HEADS + KV:
        number = layer * (HEADS + KV) + head
        first, second = turned_head(first, second, gains, number, table, position, eps, HALF, NORMS)
    if head < HEADS:
        tl.store(at + low, first)
        tl.store(at + high, second)
    else:
        to = place + layer * place_stride + ((head - HEADS).to(tl.int64) * capacity + position) * 2 * HALF
        tl.store(to + low, first)
        tl.store(to + high, second)


@triton.jit
def _gate(gate_up, out, size, BLOCK: tl.constexpr, PDL: tl.constexpr):
    precede(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    follow_on(PDL)
    gate = tl.load(gate_up + row * 2 * size + columns, mask=inside, other=0.0)
    up = tl.load(gate_up + (row * 2 + 1) * size + columns, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    opened = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out + row * size + columns, (opened * up.to(tl.float32)).to(gate.dtype), mask=inside)


def keep(rows: Tensor, norms: Tensor | None, stand: Stand) -> None:
    """As `twin.keep`; the places of the layers lie at equal distances."""
    count, layers, heads, dim = rows.shape
    first = stand.places[0]
    steps = {two.storage_offset() - one.storage_offset() for one, two in itertools.pairwise(stand.places)}
    if len(steps) > 1:
        raise ValueError(f"places of layers lie {sorted(steps)} numbers apart; give those of one cache")
    _rotate_write[(count, heads, layers)](
        rows, rows.stride(0), heads, rows if norms is None else norms, stand.rotations, stand.positions,
        first, max(steps, default=0), first.shape[1], stand.eps,
        HEADS=0, KV=heads // 2, HALF=dim // 2, NORMS=norms is not None, num_warps=1, **how(rows.device),
    )  # fmt: skip


class FusedOps:
    """`targets.layer_ops.LayerOps` of rows at positions that only the device knows."""

    def __init__(self, stand: Stand, ways: Ways = WAYS, ahead: Sequence[Tensor | None] = ()) -> None:
        """Of one forward; `ahead`: weights of the product behind each layer's attention, for `Ways.fetch`."""
        self._stand, self._ways, self._ahead = stand, ways, ahead

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """As in `LayerOps`."""
        normed = torch.empty_like(hidden)
        self._norm(hidden, hidden, weight, hidden, normed, adds=False)
        return normed

    def add_norm(self, hidden: Tensor, delta: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """As in `LayerOps`."""
        summed, normed = torch.empty_like(hidden), torch.empty_like(hidden)
        self._norm(hidden, delta, weight, summed, normed, adds=True)
        return summed, normed

    def attend(self, layer: int, qkv: Tensor, qk_norm: Tensor | None) -> Tensor:
        """As in `LayerOps`."""
        ahead = self._ahead[layer] if self._ahead else None
        return attend_layer(qkv, qk_norm, self._stand, self._stand.places[layer], self._ways, ahead)

    def gate(self, gate_up: Tensor) -> Tensor:
        """As in `LayerOps`."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty((rows, size))
        _gate[(rows, triton.cdiv(size, GATED))](gate_up, out, size, BLOCK=GATED, **how(out.device))
        return out

    def _norm(
        self, hidden: Tensor, delta: Tensor, weight: Tensor, summed: Tensor, normed: Tensor, *, adds: bool
    ) -> None:
        rows, size = hidden.shape
        _add_norm[(rows,)](
            hidden, delta, weight, summed, normed, size, self._stand.eps,
            ADDS=adds, BLOCK=triton.next_power_of_2(size), num_warps=8 if size > WIDE else 4,
            **how(hidden.device),
        )  # fmt: skip
