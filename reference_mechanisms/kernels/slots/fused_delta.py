"""The same in Triton, a program for each seat and value head; the twin is `delta.py`.

A program takes the rows of its seat one after another with the state in registers, by the row of
`kernels.step.fused_delta`: what a row computes hangs on no other seat, and not on how many rows there are.
"""

# ruff: noqa: PLR0913, PLR0917, N803, N806 - Triton's own language
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.slots.delta import KeptRows, SlotDeltaKernels, SlotDeltaPlan, SlotStates
from reference_mechanisms.kernels.step.delta import DeltaLog
from reference_mechanisms.kernels.step.following import follow_on, precede, unfused
from reference_mechanisms.kernels.step.fused_delta import WIDE, constants_of, shifted, stepped, written
from reference_mechanisms.targets.gated_delta import LENGTH_EPS, DeltaInputs, DeltaMixer


@triton.jit
def _recur_seats(
    raw, z, b, a, weights, rate, bias, gains, slots, firsts, counts, windows, memory, window, out,
    log_key, log_value, log_beta, log_decay, log_raw, scale, eps, unit_eps,
    MOST: tl.constexpr, KERNEL: tl.constexpr, REPEATS: tl.constexpr, HEADS: tl.constexpr,
    KEY: tl.constexpr, VALUE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    seat, head = tl.program_id(0), tl.program_id(1)
    k, v = tl.arange(0, KEYS), tl.arange(0, VALUES)
    has_v = v < VALUE
    cells = k[:, None] * VALUE + v[None]
    real = (k < KEY)[:, None] & has_v[None]
    CHANNELS: tl.constexpr = 2 * (HEADS // REPEATS) * KEY + HEADS * VALUE
    follow_on(PDL)
    slot, first, count = tl.load(slots + seat), tl.load(firsts + seat), tl.load(counts + seat)
    its_rate = tl.load(rate + head)
    its_bias = tl.load(bias + head).to(tl.float32)
    gain = tl.load(gains + v, mask=has_v, other=0.0)
    taken = real & (count > 0)
    state = tl.load(memory + (slot * HEADS + head) * KEY * VALUE + cells, mask=taken, other=0.0)
    for index in range(MOST):
        if index < count:
            state = stepped(
                state, first + index, first + index, raw + first * CHANNELS, raw, z, b, a,
                window + slot * (KERNEL - 1) * CHANNELS, windows, weights, its_rate, its_bias, gain, out,
                log_key, log_value, log_beta, log_decay, log_raw, head, scale, eps, unit_eps,
                KERNEL, REPEATS, HEADS, KEY, VALUE, KEYS, VALUES,
            )  # fmt: skip


@triton.jit
def _recur_trees(
    raw, z, b, a, weights, rate, bias, gains, slots, firsts, counts, above, windows, memory, window, states,
    out, log_key, log_value, log_beta, log_decay, log_raw, scale, eps, unit_eps,
    MOST: tl.constexpr, KERNEL: tl.constexpr, REPEATS: tl.constexpr, HEADS: tl.constexpr,
    KEY: tl.constexpr, VALUE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    seat, head = tl.program_id(0), tl.program_id(1)
    k, v = tl.arange(0, KEYS), tl.arange(0, VALUES)
    has_v = v < VALUE
    cells = k[:, None] * VALUE + v[None]
    real = (k < KEY)[:, None] & has_v[None]
    CHANNELS: tl.constexpr = 2 * (HEADS // REPEATS) * KEY + HEADS * VALUE
    mine: tl.constexpr = KEY * VALUE
    follow_on(PDL)
    slot, first, count = tl.load(slots + seat), tl.load(firsts + seat), tl.load(counts + seat)
    its_rate = tl.load(rate + head)
    its_bias = tl.load(bias + head).to(tl.float32)
    gain = tl.load(gains + v, mask=has_v, other=0.0)
    root = memory + (slot * HEADS + head) * mine
    state = tl.load(root + cells, mask=real & (count > 0), other=0.0)
    for index in range(MOST):
        if index < count:
            row = first + index
            parent = tl.load(above + row)  # 0: the root; `index`: what is in the registers
            found = tl.load(root + cells, mask=real & (parent == 0), other=0.0)
            other = tl.load(
                states + ((first + parent - 1) * HEADS + head) * mine + cells,
                mask=real & (parent > 0) & (parent != index), other=0.0,
            )  # fmt: skip
            state = tl.where(parent == 0, found, tl.where(parent == index, state, other))
            state = stepped(
                state, row, row, raw + first * CHANNELS, raw, z, b, a,
                window + slot * (KERNEL - 1) * CHANNELS, windows, weights, its_rate, its_bias, gain, out,
                log_key, log_value, log_beta, log_decay, log_raw, head, scale, eps, unit_eps,
                KERNEL, REPEATS, HEADS, KEY, VALUE, KEYS, VALUES,
            )  # fmt: skip
            tl.store(states + (row * HEADS + head) * mine + cells, state, mask=real)
            tl.debug_barrier()


@triton.jit
def _replay_seats(
    memories, windows, log_key, log_value, log_beta, log_decay, log_raw, slots, firsts, counts, paths,
    path_stride, all_slots, rows,
    MOST: tl.constexpr, KERNEL: tl.constexpr, REPEATS: tl.constexpr, HEADS: tl.constexpr,
    KEY: tl.constexpr, VALUE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, RANGE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    layer, head, seat = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    key_head = head // REPEATS
    k, v = tl.arange(0, KEYS), tl.arange(0, VALUES)
    has_k, has_v = k < KEY, v < VALUE
    KEY_CHANNELS: tl.constexpr = (HEADS // REPEATS) * KEY
    CHANNELS: tl.constexpr = 2 * KEY_CHANNELS + HEADS * VALUE
    cells = k[:, None] * VALUE + v[None]
    real = has_k[:, None] & has_v[None]
    follow_on(PDL)
    slot, first, kept = tl.load(slots + seat), tl.load(firsts + seat), tl.load(counts + seat)
    if kept > 0:  # else the slot may be that of another seat
        at = memories + ((layer * all_slots + slot) * HEADS + head) * KEY * VALUE
        state = tl.load(at + cells, mask=real, other=0.0)
        path = paths + seat * path_stride
        for number in range(MOST):
            if number < kept:
                row = layer * rows + first + tl.load(path + number)
                key = tl.load(log_key + row * KEY_CHANNELS + key_head * KEY + k, mask=has_k, other=0.0)
                value = tl.load(log_value + (row * HEADS + head) * VALUE + v, mask=has_v, other=0.0)
                beta, decay = tl.load(log_beta + row * HEADS + head), tl.load(log_decay + row * HEADS + head)
                state = written(state, key, value.to(tl.float32), beta, decay)
        tl.store(at + cells, state, mask=real)
        window = windows + (layer * all_slots + slot) * (KERNEL - 1) * CHANNELS
        raw = log_raw + (layer * rows + first) * CHANNELS
        channel, leads = key_head * KEY + k, has_k & (head % REPEATS == 0)
        shifted(window, raw, path, kept, channel, leads, CHANNELS, KERNEL - 1, RANGE)
        shifted(window, raw, path, kept, KEY_CHANNELS + channel, leads, CHANNELS, KERNEL - 1, RANGE)
        values = 2 * KEY_CHANNELS + head * VALUE + v
        shifted(window, raw, path, kept, values, has_v, CHANNELS, KERNEL - 1, RANGE)


def recur(
    mixer: DeltaMixer,
    inputs: DeltaInputs,
    plan: SlotDeltaPlan,
    states: SlotStates,
    log: DeltaLog,
    layer: int,
) -> Tensor:
    """As `delta.recur`; padding gives zeros."""
    sizes, weights, packed = mixer.sizes, mixer.weights, plan.packed
    raw, z, b, a = (part.contiguous() for part in inputs)
    out = torch.zeros((len(raw), sizes.values), dtype=raw.dtype, device=raw.device)
    before = (
        raw, z, b, a, weights.convolution, mixer.rate, weights.dt_bias, weights.norm, packed.slots,
        packed.first, packed.counts,
    )  # fmt: skip
    behind = (*(part[layer] for part in log), sizes.key_dim**-0.5, mixer.eps, LENGTH_EPS)
    memory = states.memories[layer], states.windows[layer]
    options = constants_of(*sizes) | unfused(raw.device) | {"num_warps": 8 if sizes.value_dim > WIDE else 4}
    grid = len(packed.slots), sizes.value_heads
    if plan.chain:
        _recur_seats[grid](*before, plan.windows, *memory, out, *behind, MOST=plan.most, **options)
        return out
    # The state behind each row, where its children find it.
    shape = (len(raw), sizes.value_heads, sizes.key_dim, sizes.value_dim)
    kept = torch.empty(shape, dtype=torch.float32, device=raw.device)
    _recur_trees[grid](
        *before, plan.above, plan.windows, *memory, kept, out, *behind, MOST=plan.most, **options
    )
    return out


def replay(states: SlotStates, log: DeltaLog, kept: KeptRows) -> None:
    """As `delta.replay`."""
    layers, rows, key_heads, repeats, value_dim = log.value.shape
    kernel = states.windows.shape[2] + 1
    _replay_seats[(layers, key_heads * repeats, len(kept.slots))](
        *states, *log, *kept, kept.paths.stride(0), states.windows.shape[1], rows,
        MOST=kept.paths.shape[1], RANGE=triton.next_power_of_2(kernel - 1),
        **constants_of(key_heads, key_heads * repeats, log.key.shape[-1], value_dim, kernel),
        num_warps=8 if value_dim > WIDE else 4, **unfused(kept.slots.device),
    )  # fmt: skip


SLOT_DELTA = SlotDeltaKernels(recur, replay)
