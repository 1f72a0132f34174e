"""A hybrid target that can be trained: the layout of Qwen3-Next, dense layers only, many sequences at once.

Parameters have the names, shapes and conventions of Hugging Face Transformers' `Qwen3NextForCausalLM`, so
that they can be stored as they are (`storing.py`). Source of the layers: see `targets/hybrid.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference_mechanisms.targets.gated_delta import unit_length
from reference_mechanisms.targets.hybrid_config import HybridConfig
from reference_mechanisms.targets.rope import rotation_table
from reference_mechanisms.targets.training.chunked import Rows, delta_rule

DEVIATION = 0.02  # of matrices at first
LARGEST_RATE = 16.0  # of decays at first


class Outputs(NamedTuple):
    """Of a forward."""

    hidden: Tensor  # [sequences, positions, hidden], after the final norm
    taps: tuple[Tensor, ...]  # outputs of the layers asked for, as `hidden`


class Past:
    """Sequences that end at the same column and begin where they like; empty at first."""

    def __init__(self, config: HybridConfig, first: Tensor, capacity: int, dtype: torch.dtype) -> None:
        """Room for columns.

        Args:
            config: of the network.
            first: column at which each sequence begins, [sequences].
            capacity: columns.
            dtype: of keys and values.
        """
        self.first, self.columns, sizes = first, 0, config.delta
        count, device = len(first), first.device
        self.states: list[tuple[Tensor, Tensor]] = []
        for kind in config.kinds:
            if kind == "full_attention":
                shape: tuple[int, ...] = (count, config.kv_heads, capacity, config.head_dim)
                keys = torch.zeros(shape, dtype=dtype, device=device)
                self.states.append((keys, torch.zeros_like(keys)))
            else:
                memory = (count, sizes.value_heads, sizes.key_dim, sizes.value_dim)
                window = (count, sizes.kernel - 1, sizes.channels)
                self.states.append(
                    (torch.zeros(memory, device=device), torch.zeros(window, dtype=dtype, device=device))
                )

    def keep(self, rows: Tensor) -> None:
        """Go on with these sequences only."""
        self.first = self.first[rows]
        self.states = [(one[rows], other[rows]) for one, other in self.states]


class CentredNorm(nn.Module):
    """Root-mean-square norm whose weight is stored minus one."""

    def __init__(self, size: int, eps: float) -> None:
        """All ones at first."""
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """As x."""
        return F.rms_norm(x.float(), self.weight.shape, 1.0 + self.weight.float(), self.eps).to(x.dtype)


class OutputNorm(nn.Module):
    """Norm of value heads, gated."""

    def __init__(self, size: int, eps: float) -> None:
        """All ones at first."""
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """As x, times SiLU of the gate."""
        normed = F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps)
        return normed * F.silu(gate.float())


class DeltaLayer(nn.Module):
    """Gated DeltaNet."""

    def __init__(self, config: HybridConfig) -> None:
        """Noise and the published beginnings of the decays."""
        super().__init__()
        sizes = self.sizes = config.delta
        hidden = config.hidden_size
        self.in_proj_qkvz = nn.Linear(hidden, 2 * sizes.keys + 2 * sizes.values, bias=False)
        self.in_proj_ba = nn.Linear(hidden, 2 * sizes.value_heads, bias=False)
        self.conv1d = nn.Conv1d(
            sizes.channels, sizes.channels, sizes.kernel, groups=sizes.channels, bias=False
        )
        rates = torch.linspace(LARGEST_RATE / sizes.value_heads, LARGEST_RATE, sizes.value_heads)
        self.A_log = nn.Parameter(rates.log())
        # softplus(bias) so small that the slowest head remembers hundreds of rows
        self.dt_bias = nn.Parameter(torch.full((sizes.value_heads,), -4.0))
        self.norm = OutputNorm(sizes.value_dim, config.norm_eps)
        self.out_proj = nn.Linear(sizes.values, hidden, bias=False)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None, valid: Tensor | None) -> Tensor:
        """As x; `past` is moved on, rows that are not `valid` leave no trace."""
        sizes = self.sizes
        repeats = sizes.value_heads // sizes.key_heads
        wide = repeats * sizes.value_dim
        by_key_head = self.in_proj_qkvz(x).unflatten(-1, (sizes.key_heads, -1))
        query, key, value, z = by_key_head.split([sizes.key_dim, sizes.key_dim, wide, wide], dim=-1)
        strength, a = self.in_proj_ba(x).unflatten(-1, (sizes.key_heads, 2, repeats)).unbind(-2)
        raw = torch.cat([part.flatten(2) for part in (query, key, value)], dim=-1)
        if valid is not None:
            raw = raw * valid[..., None]
        before = raw.new_zeros(len(raw), sizes.kernel - 1, sizes.channels) if past is None else past[1]
        whole = torch.cat((before.to(raw.dtype), raw), dim=1)
        rows = raw.shape[1]
        taps = self.conv1d.weight.squeeze(1).to(raw.dtype)
        mixed = F.silu(sum(whole[:, at : at + rows] * taps[:, at] for at in range(sizes.kernel)))  # type: ignore[arg-type]
        query, key, value = mixed.split([sizes.keys, sizes.keys, sizes.values], dim=-1)  # type: ignore[no-untyped-call]

        def heads(part: Tensor) -> Tensor:
            unit = unit_length(part.unflatten(-1, (sizes.key_heads, sizes.key_dim)))  # type: ignore[no-untyped-call]
            return unit.repeat_interleave(repeats, dim=2).transpose(1, 2)

        decays = -self.A_log.float().exp() * F.softplus(a.flatten(2).float() + self.dt_bias.float())
        given = Rows(
            query=heads(query) / sizes.key_dim**0.5,
            key=heads(key),
            value=value.unflatten(-1, (sizes.value_heads, sizes.value_dim)).transpose(1, 2).float(),
            beta=strength.flatten(2).float().sigmoid().transpose(1, 2),
            log_decay=decays.transpose(1, 2),
        )
        with torch.autocast(x.device.type, enabled=False):
            if past is not None and rows == 1:
                read, memory = _step(given, past[0])
            else:
                read, memory = delta_rule(given, None if past is None else past[0])
        if past is not None:
            past[0].copy_(memory)
            past[1].copy_(whole[:, rows:])
        gate = z.reshape(*x.shape[:2], sizes.value_heads, sizes.value_dim)
        output: Tensor = self.out_proj(self.norm(read.transpose(1, 2), gate).flatten(2).to(x.dtype))
        return output


class AttentionLayer(nn.Module):
    """Gated full attention."""

    def __init__(self, config: HybridConfig) -> None:
        """Noise."""
        super().__init__()
        self.config = config
        query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, 2 * query, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)
        self.q_norm = CentredNorm(config.head_dim, config.norm_eps)
        self.k_norm = CentredNorm(config.head_dim, config.norm_eps)

    def forward(
        self, x: Tensor, rotations: Tensor, past: tuple[Tensor, Tensor] | None, mask: Tensor | None, end: int
    ) -> Tensor:
        """As x; `past` gets the new keys and values in front of column `end`."""
        config, rows = self.config, x.shape[1]
        query, gate = self.q_proj(x).unflatten(-1, (config.heads, 2, config.head_dim)).unbind(-2)
        key = self.k_norm(self.k_proj(x).unflatten(-1, (config.kv_heads, config.head_dim)))
        value = self.v_proj(x).unflatten(-1, (config.kv_heads, config.head_dim)).transpose(1, 2)
        query = _rotated(self.q_norm(query), rotations, config.rotary_dim).transpose(1, 2)
        key = _rotated(key, rotations, config.rotary_dim).transpose(1, 2)
        if past is not None:
            past[0][:, :, end - rows : end] = key
            past[1][:, :, end - rows : end] = value
            key, value = past[0][:, :, :end], past[1][:, :, :end]
        shared = config.heads // config.kv_heads
        key, value = (part.repeat_interleave(shared, 1).to(query.dtype) for part in (key, value))
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        output: Tensor = self.o_proj((found.transpose(1, 2) * gate.sigmoid()).flatten(2).to(x.dtype))
        return output


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, inner: int) -> None:
        """Noise."""
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """As x."""
        output: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class DecoderLayer(nn.Module):
    """One layer of either kind."""

    linear_attn: DeltaLayer
    self_attn: AttentionLayer
    mlp: Mlp

    def __init__(self, config: HybridConfig, *, linear: bool) -> None:
        """Noise."""
        super().__init__()
        self.input_layernorm = CentredNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = CentredNorm(config.hidden_size, config.norm_eps)
        if linear:
            self.linear_attn = DeltaLayer(config)
        else:
            self.self_attn = AttentionLayer(config)
        self.linear, self.mlp = linear, Mlp(config.hidden_size, config.intermediate_size)


class HybridNetwork(nn.Module):
    """The whole, tied to its embedding as head."""

    rotations: Tensor

    def __init__(self, config: HybridConfig, seed: int) -> None:
        """Noise of a seed.

        Args:
            config: of Qwen3-Next's layout, with a tied head and no biases.
            seed: of the noise.
        """
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(config, linear=kind == "linear_attention") for kind in config.kinds
        )
        self.norm = CentredNorm(config.hidden_size, config.norm_eps)
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.ndim > 1:
                    wide = 0.3 if "conv1d" in name else DEVIATION
                    weight.copy_(torch.randn(weight.shape, generator=random) * wide)
        table = rotation_table(config.rope, config.rotary_dim, config.max_positions, torch.float32)
        self.register_buffer("rotations", table, persistent=False)

    def forward(self, token_ids: Tensor, taps: Sequence[int] = (), past: Past | None = None) -> Outputs:
        """Run all layers on [sequences, positions]; causal, from an empty past or behind the given one."""
        rows = token_ids.shape[1]
        start = 0 if past is None else past.columns
        columns = torch.arange(start, start + rows, device=token_ids.device)
        positions, mask, valid = columns[None], None, None
        if past is not None:
            positions = (columns[None] - past.first[:, None]).clamp_min(0)
            valid = columns[None] >= past.first[:, None]
            index = torch.arange(start + rows, device=token_ids.device)
            inside = (index >= past.first[:, None, None]) & (index <= columns[None, :, None])
            mask = (inside | (index == columns[None, :, None]))[:, None]  # padding sees itself
        rotations = self.rotations[positions].movedim(2, 0)
        # The gradient of this form adds rows in place: nothing waits for the host, so a step can be recorded.
        hidden = self.embed_tokens.weight.index_select(0, token_ids.flatten()).unflatten(0, token_ids.shape)  # type: ignore[no-untyped-call]
        seen = {-1: hidden}
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)  # noqa: S101 - what __init__ put there
            state = None if past is None else past.states[number]
            normed = layer.input_layernorm(hidden)
            if layer.linear:
                hidden = hidden + layer.linear_attn(normed, state, valid)
            else:
                hidden = hidden + layer.self_attn(normed, rotations, state, mask, start + rows)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            if number in taps:
                seen[number] = hidden
        if past is not None:
            past.columns += rows
        return Outputs(self.norm(hidden), tuple(seen[tap] for tap in taps))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocabulary]."""
        return F.linear(hidden, self.embed_tokens.weight.to(hidden.dtype))


def _step(rows: Rows, memory: Tensor) -> tuple[Tensor, Tensor]:
    """One row of each sequence."""
    key, query = rows.key[:, :, 0, :, None], rows.query[:, :, 0, :, None]
    decayed = memory * rows.log_decay[..., None].exp()
    delta = (rows.value[:, :, 0] - (decayed * key).sum(-2)) * rows.beta
    after = decayed + key * delta[..., None, :]
    return (after * query).sum(-2)[:, :, None], after


def _rotated(x: Tensor, rotations: Tensor, size: int) -> Tensor:
    turned, rest = x[..., :size], x[..., size:]
    first, second = turned.chunk(2, dim=-1)
    cosines, sines = rotations[0].to(x.dtype), rotations[1].to(x.dtype)
    return torch.cat((turned * cosines + torch.cat((second, first), dim=-1) * sines, rest), dim=-1)
