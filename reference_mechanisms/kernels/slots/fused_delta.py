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

from reference_mechanisms.kernels.slots.delta import Kept, SlotDeltaKernels, SlotDeltaPlan, SlotStates
from reference_mechanisms.kernels.step.delta import DeltaLog
from reference_mechanisms.kernels.step.following import follow_on, how, precede
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
                state, first + index, index, raw + first * CHANNELS, raw, z, b, a,
                window + slot * (KERNEL - 1) * CHANNELS, windows, weights, its_rate, its_bias, gain, out,
                log_key, log_value, log_beta, log_decay, log_raw, head, scale, eps, unit_eps,
                KERNEL, REPEATS, HEADS, KEY, VALUE, KEYS, VALUES,
            )  # fmt: skip


@triton.jit
def _replay_seats(
    memories, windows, log_key, log_value, log_beta, log_decay, log_raw, slots, firsts, counts, inside,
    all_slots, rows,
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
        for number in range(MOST):
            if number < kept:
                row = layer * rows + first + number
                key = tl.load(log_key + row * KEY_CHANNELS + key_head * KEY + k, mask=has_k, other=0.0)
                value = tl.load(log_value + (row * HEADS + head) * VALUE + v, mask=has_v, other=0.0)
                beta, decay = tl.load(log_beta + row * HEADS + head), tl.load(log_decay + row * HEADS + head)
                state = written(state, key, value.to(tl.float32), beta, decay)
        tl.store(at + cells, state, mask=real)
        window = windows + (layer * all_slots + slot) * (KERNEL - 1) * CHANNELS
        raw = log_raw + (layer * rows + first) * CHANNELS
        channel, leads = key_head * KEY + k, has_k & (head % REPEATS == 0)
        shifted(window, raw, inside, kept, channel, leads, CHANNELS, KERNEL - 1, RANGE)
        shifted(window, raw, inside, kept, KEY_CHANNELS + channel, leads, CHANNELS, KERNEL - 1, RANGE)
        values = 2 * KEY_CHANNELS + head * VALUE + v
        shifted(window, raw, inside, kept, values, has_v, CHANNELS, KERNEL - 1, RANGE)


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
    _recur_seats[(len(packed.slots), sizes.value_heads)](
        raw, z, b, a, weights.convolution, mixer.rate, weights.dt_bias, weights.norm, packed.slots,
        packed.first, packed.counts, plan.windows, states.memories[layer], states.windows[layer], out,
        *(part[layer] for part in log), sizes.key_dim**-0.5, mixer.eps, LENGTH_EPS,
        MOST=len(plan.windows), **constants_of(*sizes),
        num_warps=8 if sizes.value_dim > WIDE else 4, **how(raw.device),
    )  # fmt: skip
    return out


def replay(states: SlotStates, log: DeltaLog, kept: Kept) -> None:
    """As `delta.replay`."""
    layers, rows, key_heads, repeats, value_dim = log.value.shape
    kernel = states.windows.shape[2] + 1
    _replay_seats[(layers, key_heads * repeats, len(kept.slots))](
        *states, *log, *kept, states.windows.shape[1], rows,
        MOST=len(kept.inside), RANGE=triton.next_power_of_2(kernel - 1),
        **constants_of(key_heads, key_heads * repeats, log.key.shape[-1], value_dim, kernel),
        num_warps=8 if value_dim > WIDE else 4, **how(kept.slots.device),
    )  # fmt: skip


SLOT_DELTA = SlotDeltaKernels(recur, replay)
