"""The WY form of Gated DeltaNet over a step's rows in Triton; twin: `dense_delta.py`.

A program for each value head multiplies keys and queries of all rows with the committed state and with each
other, a few channels at a time, and substitutes row by row under the mask of ancestors. Products are float32
throughout. What it logs is what `fused_delta.py` logs, and its replay is that one's.
"""

# ruff: noqa: PLR0913, PLR0915, PLR0917, N803, N806 - Triton's own language
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.step.delta import WORD, DeltaKernels, DeltaLog, DeltaMemory, DeltaPlan
from reference_mechanisms.kernels.step.following import follow_on, how, precede
from reference_mechanisms.kernels.step.fused_delta import WIDE, constants_of, replay
from reference_mechanisms.targets.gated_delta import LENGTH_EPS, DeltaInputs, DeltaMixer

SMALLEST = 16  # of a side of a product


@triton.jit
def _convolved(raw, window, windows, weights, row, real, channel, inside, channels, KERNEL: tl.constexpr):
    """Convolution and SiLU of some channels of all rows, rounded to the type of the inputs."""
    total = tl.zeros((row.shape[0], channel.shape[0]), tl.float32)
    cell = real[:, None] & inside[None]
    for tap in tl.static_range(KERNEL):
        place = tl.load(windows + row * KERNEL + tap, mask=real, other=0)[:, None]
        behind = place - (KERNEL - 1)
        kept = tl.load(window + place * channels + channel[None], mask=cell & (behind < 0), other=0.0)
        new = tl.load(raw + behind * channels + channel[None], mask=cell & (behind >= 0), other=0.0)
        seen = tl.where(behind < 0, kept, new).to(tl.float32)
        weight = tl.load(weights + tap * channels + channel, mask=inside, other=0.0).to(tl.float32)
        total += seen * weight[None]
    kind = raw.dtype.element_ty
    wide = total.to(kind).to(tl.float32)
    return (wide / (1.0 + tl.exp(-wide))).to(kind)


@triton.jit
def _solve(
    raw, z, b, a, weights, rate, bias, gains, seen, windows, memory, window, out,
    log_key, log_value, log_beta, log_decay, log_raw, scale, eps, unit_eps,
    ROWS: tl.constexpr, SIDE: tl.constexpr, KERNEL: tl.constexpr, REPEATS: tl.constexpr,
    HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    PART: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    head = tl.program_id(0)
    key_head = head // REPEATS
    row, part, v = tl.arange(0, SIDE), tl.arange(0, PART), tl.arange(0, VALUES)
    real, has_v = row < ROWS, v < VALUE
    KEY_CHANNELS: tl.constexpr = (HEADS // REPEATS) * KEY
    CHANNELS: tl.constexpr = 2 * KEY_CHANNELS + HEADS * VALUE
    value_channel = 2 * KEY_CHANNELS + head * VALUE + v
    kind = raw.dtype.element_ty
    its_rate = tl.load(rate + head)
    its_bias = tl.load(bias + head).to(tl.float32)
    gain = tl.load(gains + v, mask=has_v, other=0.0).to(tl.float32)
    follow_on(PDL)
    own_v = real[:, None] & has_v[None]
    # Products over keys and queries a few channels at a time; lengths come out with them.
    key_square, query_square = tl.zeros((SIDE,), tl.float32), tl.zeros((SIDE,), tl.float32)
    keys, pairs = tl.zeros((SIDE, SIDE), tl.float32), tl.zeros((SIDE, SIDE), tl.float32)
    known, read = tl.zeros((SIDE, VALUES), tl.float32), tl.zeros((SIDE, VALUES), tl.float32)
    for begin in range(0, KEYS, PART):
        k = begin + part
        has_k = k < KEY
        query = _convolved(
            raw, window, windows, weights, row, real, key_head * KEY + k, has_k, CHANNELS, KERNEL
        ).to(tl.float32)
        key = _convolved(
            raw, window, windows, weights, row, real, KEY_CHANNELS + key_head * KEY + k, has_k, CHANNELS,
            KERNEL,
        ).to(tl.float32)  # fmt: skip
        state = tl.load(
            memory + head * KEY * VALUE + k[:, None] * VALUE + v[None],
            mask=has_k[:, None] & has_v[None],
            other=0.0,
        )
        turned = tl.trans(key)
        key_square += tl.sum(key * key, 1)
        query_square += tl.sum(query * query, 1)
        keys += tl.dot(key, turned, input_precision="ieee")
        pairs += tl.dot(query, turned, input_precision="ieee")
        known += tl.dot(key, state, input_precision="ieee")
        read += tl.dot(query, state, input_precision="ieee")
    of_key = tl.rsqrt(key_square + unit_eps)
    of_query = tl.rsqrt(query_square + unit_eps) * scale
    value = _convolved(raw, window, windows, weights, row, real, value_channel, has_v, CHANNELS, KERNEL)
    strength = tl.load(b + row * HEADS + head, mask=real, other=0.0).to(tl.float32)
    beta = tl.where(real, (1.0 / (1.0 + tl.exp(-strength))).to(kind).to(tl.float32), 0.0)
    wide = tl.load(a + row * HEADS + head, mask=real, other=0.0).to(tl.float32) + its_bias
    soft = tl.where(wide > 20.0, wide, tl.log(1.0 + tl.exp(tl.minimum(wide, 20.0))))
    decay = tl.where(real, its_rate * soft, 0.0)
    # Who stands above whom, and the decay between them: sums over the rows of the segment alone.
    words = tl.load(seen + row, mask=real, other=0)
    way = ((words[:, None] >> row[None]) & 1) > 0
    segment, total = tl.zeros((SIDE, SIDE), tl.float32), tl.zeros((SIDE,), tl.float32)
    for index in range(ROWS):
        on_way = ((words >> index) & 1).to(tl.float32)
        mine = on_way * tl.sum(tl.where(row == index, decay, 0.0), 0)
        segment += mine[:, None] * (1.0 - on_way)[None]
        total += mine
    between = tl.where(way, tl.exp(tl.where(way, segment, 0.0)), 0.0)
    whole = tl.exp(total)[:, None]
    overlap = beta[:, None] * between * keys * of_key[:, None] * of_key[None]
    weighed = between * pairs * of_query[:, None] * of_key[None]
    delta = beta[:, None] * (value.to(tl.float32) - whole * known * of_key[:, None])
    read = whole * read * of_query[:, None]
    for index in range(ROWS):  # a row's ancestors are solved before it
        column = row[None] == index
        solved = tl.sum(tl.where((row == index)[:, None], delta, 0.0), 0)[None]
        above = tl.sum(tl.where(column, overlap, 0.0), 1)
        delta -= tl.where(row > index, above, 0.0)[:, None] * solved
        read += tl.sum(tl.where(column, weighed, 0.0), 1)[:, None] * solved
    read = read.to(kind).to(tl.float32)
    root = tl.rsqrt(tl.sum(tl.where(has_v[None], read * read, 0.0), 1) / VALUE + eps)
    normed = ((read * root[:, None]).to(kind).to(tl.float32) * gain[None]).to(kind).to(tl.float32)
    at = (row[:, None] * HEADS + head) * VALUE + v[None]
    gate = tl.load(z + at, mask=own_v, other=0.0).to(tl.float32)
    tl.store(out + at, (normed * (gate / (1.0 + tl.exp(-gate)))).to(kind), mask=own_v)
    tl.store(log_value + at, value, mask=own_v)
    tl.store(log_beta + row * HEADS + head, beta, mask=real)
    tl.store(log_decay + row * HEADS + head, decay, mask=real)
    for_value = row[:, None] * CHANNELS + value_channel[None]
    tl.store(log_raw + for_value, tl.load(raw + for_value, mask=own_v), mask=own_v)
    if head % REPEATS == 0:
        for begin in range(0, KEYS, PART):
            k = begin + part
            has_k = k < KEY
            own_k = real[:, None] & has_k[None]
            channel = KEY_CHANNELS + key_head * KEY + k
            key = _convolved(raw, window, windows, weights, row, real, channel, has_k, CHANNELS, KERNEL)
            for_log = row[:, None] * KEY_CHANNELS + (key_head * KEY + k)[None]
            tl.store(log_key + for_log, key.to(tl.float32) * of_key[:, None], mask=own_k)
            for_query = row[:, None] * CHANNELS + (key_head * KEY + k)[None]
            for_key = row[:, None] * CHANNELS + channel[None]
            tl.store(log_raw + for_query, tl.load(raw + for_query, mask=own_k), mask=own_k)
            tl.store(log_raw + for_key, tl.load(raw + for_key, mask=own_k), mask=own_k)


def recur(
    mixer: DeltaMixer, inputs: DeltaInputs, plan: DeltaPlan, memory: DeltaMemory, log: DeltaLog, layer: int
) -> Tensor:
    """As `dense_delta.recur`.

    Raises:
        ValueError: there are more rows than bits.
    """
    sizes, weights, rows = mixer.sizes, mixer.weights, len(inputs.raw)
    if rows > WORD:
        raise ValueError(f"{rows} rows; a word of bits tells of {WORD}")
    raw, z, b, a = (part.contiguous() for part in inputs)
    out = torch.empty((rows, sizes.values), dtype=raw.dtype, device=raw.device)
    constants = constants_of(*sizes)
    for side in ("KEYS", "VALUES"):
        constants[side] = max(SMALLEST, constants[side])
    _solve[(sizes.value_heads,)](
        raw, z, b, a, weights.convolution, mixer.rate, weights.dt_bias, weights.norm, plan.seen,
        plan.windows, memory.memories[layer], memory.windows[layer], out, *(part[layer] for part in log),
        sizes.key_dim**-0.5, mixer.eps, LENGTH_EPS,
        ROWS=rows, SIDE=max(SMALLEST, triton.next_power_of_2(rows)), PART=SMALLEST, **constants,
        num_warps=8 if sizes.value_dim > WIDE else 4, **how(raw.device),
    )  # fmt: skip
    return out


DENSE_DELTA = DeltaKernels(recur, replay)
