"""Gated DeltaNet over the rows of a chain or tree in Triton, a program for each value head; twin: `delta.py`.

A program takes the rows one after another, so what a row computes does not hang on how many there are. The
state behind each row stays where the next ones find it: in registers, or in a scratch for children of earlier
rows.
"""

# ruff: noqa: PLR0913, PLR0917, N803, N806 - Triton's own language
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_mechanisms.kernels.step.delta import DeltaKernels, DeltaLog, DeltaMemory, DeltaPlan
from reference_mechanisms.kernels.step.following import follow_on, precede, unfused
from reference_mechanisms.targets.gated_delta import LENGTH_EPS, DeltaInputs, DeltaMixer

WIDE = 64  # of a value head, above which a program takes more warps


@triton.jit
def mixed(raw, window, windows, weights, row, channel, inside, channels, KERNEL: tl.constexpr):
    """Convolution and SiLU of some channels of a row, rounded to the type of the inputs."""
    total = tl.zeros(channel.shape, tl.float32)
    for tap in tl.static_range(KERNEL):
        place = tl.load(windows + row * KERNEL + tap)
        behind = place - (KERNEL - 1)
        kept = tl.load(window + place * channels + channel, mask=inside & (behind < 0), other=0.0)
        new = tl.load(raw + behind * channels + channel, mask=inside & (behind >= 0), other=0.0)
        seen = tl.where(behind < 0, kept, new).to(tl.float32)
        total += seen * tl.load(weights + tap * channels + channel, mask=inside, other=0.0).to(tl.float32)
    kind = raw.dtype.element_ty
    wide = total.to(kind).to(tl.float32)
    return (wide / (1.0 + tl.exp(-wide))).to(kind)


@triton.jit
def unit(x, eps):
    """A head of unit length, in float32."""
    wide = x.to(tl.float32)
    return wide * tl.rsqrt(tl.sum(wide * wide, 0) + eps)


@triton.jit
def written(state, key, value, beta, decay):
    """The memory of a head after one row's write."""
    state = state * tl.exp(decay)
    known = tl.sum(state * key[:, None], 0)
    delta = (value - known) * beta
    return state + key[:, None] * delta[None]


@triton.jit
def stepped(
    state, row, place, inputs, raw, z, b, a, window, windows, weights, its_rate, its_bias, gain, out,
    log_key, log_value, log_beta, log_decay, log_raw, head, scale, eps, unit_eps,
    KERNEL: tl.constexpr, REPEATS: tl.constexpr, HEADS: tl.constexpr,
    KEY: tl.constexpr, VALUE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """The memory of a value head behind one row; its output and what it writes are stored.

    `inputs` are the raw inputs that places of the convolution's window count from, `raw` those of all rows.
    """
    k, v = tl.arange(0, KEYS), tl.arange(0, VALUES)
    has_k, has_v = k < KEY, v < VALUE
    KEY_CHANNELS: tl.constexpr = (HEADS // REPEATS) * KEY
    CHANNELS: tl.constexpr = 2 * KEY_CHANNELS + HEADS * VALUE
    query_channel = (head // REPEATS) * KEY + k
    key_channel = KEY_CHANNELS + query_channel
    value_channel = 2 * KEY_CHANNELS + head * VALUE + v
    kind = raw.dtype.element_ty
    query = mixed(inputs, window, windows, weights, place, query_channel, has_k, CHANNELS, KERNEL)
    key = mixed(inputs, window, windows, weights, place, key_channel, has_k, CHANNELS, KERNEL)
    value = mixed(inputs, window, windows, weights, place, value_channel, has_v, CHANNELS, KERNEL)
    key, query = unit(key, unit_eps), unit(query, unit_eps) * scale
    strength = tl.load(b + row * HEADS + head).to(tl.float32)
    beta = (1.0 / (1.0 + tl.exp(-strength))).to(kind).to(tl.float32)
    wide = tl.load(a + row * HEADS + head).to(tl.float32) + its_bias
    soft = tl.where(wide > 20.0, wide, tl.log(1.0 + tl.exp(tl.minimum(wide, 20.0))))
    decay = its_rate * soft
    state = written(state, key, value.to(tl.float32), beta, decay)
    read = tl.sum(state * query[:, None], 0).to(kind).to(tl.float32)
    root = tl.rsqrt(tl.sum(tl.where(has_v, read * read, 0.0), 0) / VALUE + eps)
    normed = ((read * root).to(kind).to(tl.float32) * gain.to(tl.float32)).to(kind).to(tl.float32)
    at = (row * HEADS + head) * VALUE + v
    gate = tl.load(z + at, mask=has_v, other=0.0).to(tl.float32)
    tl.store(out + at, (normed * (gate / (1.0 + tl.exp(-gate)))).to(kind), mask=has_v)
    first = has_k & (head % REPEATS == 0)
    tl.store(log_key + row * KEY_CHANNELS + query_channel, key, mask=first)
    tl.store(log_value + at, value, mask=has_v)
    tl.store(log_beta + row * HEADS + head, beta)
    tl.store(log_decay + row * HEADS + head, decay)
    own = row * CHANNELS
    tl.store(log_raw + own + query_channel, tl.load(raw + own + query_channel, mask=first), mask=first)
    tl.store(log_raw + own + key_channel, tl.load(raw + own + key_channel, mask=first), mask=first)
    tl.store(log_raw + own + value_channel, tl.load(raw + own + value_channel, mask=has_v), mask=has_v)
    return state


@triton.jit
def _recur(
    raw, z, b, a, weights, rate, bias, gains, above, windows, memory, window, states, out,
    log_key, log_value, log_beta, log_decay, log_raw, scale, eps, unit_eps,
    ROWS: tl.constexpr, KERNEL: tl.constexpr, REPEATS: tl.constexpr, HEADS: tl.constexpr,
    KEY: tl.constexpr, VALUE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    head = tl.program_id(0)
    k, v = tl.arange(0, KEYS), tl.arange(0, VALUES)
    has_v = v < VALUE
    cells = k[:, None] * VALUE + v[None]
    real = (k < KEY)[:, None] & has_v[None]
    mine: tl.constexpr = KEY * VALUE
    its_rate = tl.load(rate + head)
    its_bias = tl.load(bias + head).to(tl.float32)
    gain = tl.load(gains + v, mask=has_v, other=0.0)
    follow_on(PDL)
    state = tl.load(memory + head * mine + cells, mask=real, other=0.0)
    tl.store(states + head * mine + cells, state, mask=real)
    tl.debug_barrier()
    for row in range(ROWS):
        parent = tl.load(above + row)
        found = tl.load(
            states + (parent * HEADS + head) * mine + cells, mask=real & (parent != row), other=0.0
        )
        state = stepped(
            tl.where(parent == row, state, found), row, row, raw, raw, z, b, a, window, windows, weights,
            its_rate, its_bias, gain, out, log_key, log_value, log_beta, log_decay, log_raw, head,
            scale, eps, unit_eps, KERNEL, REPEATS, HEADS, KEY, VALUE, KEYS, VALUES,
        )  # fmt: skip
        tl.store(states + ((row + 1) * HEADS + head) * mine + cells, state, mask=real)
        tl.debug_barrier()


@triton.jit
def shifted(window, raw, path, kept, channel, inside, channels, BACK: tl.constexpr, RANGE: tl.constexpr):
    """Move a window of inputs over the kept rows of a path."""
    index = tl.arange(0, RANGE)
    own = index < BACK
    place = kept + index
    row = tl.load(path + place - BACK, mask=own & (place >= BACK), other=0)
    mine = own[:, None] & inside[None]
    old = mine & (place < BACK)[:, None]
    before = tl.load(window + place[:, None] * channels + channel[None], mask=old, other=0.0)
    new = tl.load(
        raw + row[:, None] * channels + channel[None], mask=mine & (place >= BACK)[:, None], other=0.0
    )
    tl.debug_barrier()  # everything is read before anything is written
    tl.store(window + index[:, None] * channels + channel[None], tl.where(old, before, new), mask=mine)


@triton.jit
def _replay_rows(
    memories, windows, log_key, log_value, log_beta, log_decay, log_raw, path, kept_at,
    SPAN: tl.constexpr, ROWS: tl.constexpr, KERNEL: tl.constexpr, REPEATS: tl.constexpr, HEADS: tl.constexpr,
    KEY: tl.constexpr, VALUE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, RANGE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    precede(PDL)
    layer, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    key_head = head // REPEATS
    k, v = tl.arange(0, KEYS), tl.arange(0, VALUES)
    has_k, has_v = k < KEY, v < VALUE
    KEY_CHANNELS: tl.constexpr = (HEADS // REPEATS) * KEY
    CHANNELS: tl.constexpr = 2 * KEY_CHANNELS + HEADS * VALUE
    cells = k[:, None] * VALUE + v[None]
    real = has_k[:, None] & has_v[None]
    follow_on(PDL)
    kept = tl.load(kept_at).to(tl.int32)
    at = memories + (layer * HEADS + head) * KEY * VALUE
    state = tl.load(at + cells, mask=real, other=0.0)
    for index in range(SPAN):
        if index < kept:
            row = layer * ROWS + tl.load(path + index)
            key = tl.load(log_key + row * KEY_CHANNELS + key_head * KEY + k, mask=has_k, other=0.0)
            value = tl.load(log_value + (row * HEADS + head) * VALUE + v, mask=has_v, other=0.0).to(
                tl.float32
            )
            beta, decay = tl.load(log_beta + row * HEADS + head), tl.load(log_decay + row * HEADS + head)
            state = written(state, key, value, beta, decay)
    tl.store(at + cells, state, mask=real)
    window, raw = windows + layer * (KERNEL - 1) * CHANNELS, log_raw + layer * ROWS * CHANNELS
    channel, first = key_head * KEY + k, has_k & (head % REPEATS == 0)
    shifted(window, raw, path, kept, channel, first, CHANNELS, KERNEL - 1, RANGE)
    shifted(window, raw, path, kept, KEY_CHANNELS + channel, first, CHANNELS, KERNEL - 1, RANGE)
    values = 2 * KEY_CHANNELS + head * VALUE + v
    shifted(window, raw, path, kept, values, has_v, CHANNELS, KERNEL - 1, RANGE)


def recur(
    mixer: DeltaMixer, inputs: DeltaInputs, plan: DeltaPlan, memory: DeltaMemory, log: DeltaLog, layer: int
) -> Tensor:
    """As `delta.recur`."""
    sizes, weights, rows = mixer.sizes, mixer.weights, len(inputs.raw)
    raw, z, b, a = (part.contiguous() for part in inputs)
    device = raw.device
    states = torch.empty(
        (rows + 1, sizes.value_heads, sizes.key_dim, sizes.value_dim), dtype=torch.float32, device=device
    )
    out = torch.empty((rows, sizes.values), dtype=raw.dtype, device=device)
    _recur[(sizes.value_heads,)](
        raw, z, b, a, weights.convolution, mixer.rate, weights.dt_bias, weights.norm, plan.above,
        plan.windows, memory.memories[layer], memory.windows[layer], states, out,
        *(part[layer] for part in log), sizes.key_dim**-0.5, mixer.eps, LENGTH_EPS,
        ROWS=rows, **constants_of(*sizes),
        num_warps=8 if sizes.value_dim > WIDE else 4, **unfused(device),
    )  # fmt: skip
    return out


def replay(memory: DeltaMemory, log: DeltaLog, path: Tensor, kept: Tensor) -> None:
    """As `delta.replay`."""
    layers, rows, key_heads, repeats, value_dim = log.value.shape
    kernel = memory.windows.shape[1] + 1
    _replay_rows[(layers, key_heads * repeats)](
        *memory, *log, path, kept, SPAN=len(path), ROWS=rows, RANGE=triton.next_power_of_2(kernel - 1),
        **constants_of(key_heads, key_heads * repeats, log.key.shape[-1], value_dim, kernel),
        num_warps=8 if value_dim > WIDE else 4, **unfused(path.device),
    )  # fmt: skip


def constants_of(
    key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int
) -> dict[str, int]:
    """Sizes of a layer as the kernels take them; order and meaning of `DeltaSizes`."""
    return {
        "KERNEL": kernel,
        "REPEATS": value_heads // key_heads,
        "HEADS": value_heads,
        "KEY": key_dim,
        "VALUE": value_dim,
        "KEYS": triton.next_power_of_2(key_dim),
        "VALUES": triton.next_power_of_2(value_dim),
    }


DELTA = DeltaKernels(recur, replay)
