"""What the drafters are built of: norms, attention over given keys, the gated MLP, the decoder layer.

Modules hold weights under the names of the published checkpoints. Attention itself is passed in
(`Attend`), so that training (one mask over a whole sequence) and drafting (a cache) run the same layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference_mechanisms.drafters.rotation import rotate

# (layer, queries [..., heads, head_dim], keys, values [..., kv_heads, head_dim]) -> [..., heads x head_dim]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a decoder layer."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    qk_norm: bool = True
    attention_bias: bool = False  # on q, k, v and o


class Reach(NamedTuple):
    """What a row of a layer sees of the rows it may see at all."""

    causal: bool = False  # only positions up to its own
    window: int | None = None  # only positions less than this far away


def visible(queries: Tensor, keys: Tensor, reach: Reach) -> Tensor:
    """Which key positions [keys] each query position [queries] sees, [queries, keys]."""
    distance = queries[:, None] - keys[None]
    seen = distance >= 0 if reach.causal else torch.ones_like(distance, dtype=torch.bool)
    return seen if reach.window is None else seen & (distance.abs() < reach.window)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention of one sequence.

    Args:
        queries: [rows, heads, head_dim].
        keys: [kv_heads, keys, head_dim]; each serves heads / kv_heads consecutive query heads.
        values: as the keys.
        mask: bool [rows, keys], true where seen; at least one key of every row.

    Returns:
        [rows, heads x head_dim].
    """
    found = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
    )
    return found[0].transpose(0, 1).flatten(1)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in float32 at least."""

    def __init__(self, size: int, eps: float) -> None:
        """A weight of ones."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Of the shape of x."""
        if x.dtype in (torch.float32, torch.float64):  # no rounding in between: one kernel does it
            return F.rms_norm(x, self.weight.shape, self.weight, self._eps)
        wide = x.float()
        scale = (wide.pow(2).mean(-1, keepdim=True) + self._eps).rsqrt()
        normed: Tensor = (wide * scale).to(x.dtype) * self.weight
        return normed


class Attention(nn.Module):
    """Projections of an attention; which keys a row sees is the caller's affair."""

    def __init__(self, sizes: Sizes, inputs: int) -> None:
        """Queries, keys and values come from rows of width `inputs`."""
        super().__init__()
        self._head_dim = sizes.head_dim
        query, key = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        bias = sizes.attention_bias
        self.q_proj = nn.Linear(inputs, query, bias=bias)
        self.k_proj = nn.Linear(inputs, key, bias=bias)
        self.v_proj = nn.Linear(inputs, key, bias=bias)
        self.o_proj = nn.Linear(query, sizes.hidden, bias=bias)
        self.q_norm = RMSNorm(sizes.head_dim, sizes.norm_eps) if sizes.qk_norm else None
        self.k_norm = RMSNorm(sizes.head_dim, sizes.norm_eps) if sizes.qk_norm else None

    def keys_values(self, x: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [..., kv_heads, head_dim] of rows [..., inputs]."""
        keys = self.k_proj(x).unflatten(-1, (-1, self._head_dim))
        if self.k_norm is not None:
            keys = self.k_norm(keys)
        return rotate(keys, rotations), self.v_proj(x).unflatten(-1, (-1, self._head_dim))

    def queries(self, x: Tensor, rotations: Tensor) -> Tensor:
        """Queries [..., heads, head_dim] of rows [..., inputs]."""
        queries = self.q_proj(x).unflatten(-1, (-1, self._head_dim))
        if self.q_norm is not None:
            queries = self.q_norm(queries)
        return rotate(queries, rotations)

    def forward(self, x: Tensor, rotations: Tensor, attend_layer: Callable[..., Tensor]) -> Tensor:
        """Rows [..., hidden]; `attend_layer` gets queries, keys and values of the rows."""
        keys, values = self.keys_values(x, rotations)
        attended = attend_layer(self.queries(x, rotations), keys, values)
        projected: Tensor = self.o_proj(attended)
        return projected


class GatedMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, sizes: Sizes) -> None:
        """No biases."""
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.down_proj = nn.Linear(sizes.inner, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden]."""
        down: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class Layer(nn.Module):
    """Pre-norm decoder layer."""

    def __init__(self, sizes: Sizes) -> None:
        """Weights of one layer."""
        super().__init__()
        self.input_layernorm = RMSNorm(sizes.hidden, sizes.norm_eps)
        self.self_attn = Attention(sizes, sizes.hidden)
        self.post_attention_layernorm = RMSNorm(sizes.hidden, sizes.norm_eps)
        self.mlp = GatedMLP(sizes)

    def forward(self, hidden: Tensor, rotations: Tensor, attend_layer: Callable[..., Tensor]) -> Tensor:
        """Residual stream [..., hidden] behind the layer."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotations, attend_layer)
        after: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return after


class DraftVocabulary(nn.Module):
    """Maps ids of a drafter's smaller vocabulary: target id = draft id + d2t[draft id]."""

    def __init__(self, size: int) -> None:
        """An identity; the loader fills in the offsets."""
        super().__init__()
        self.d2t: Tensor
        self.register_buffer("d2t", torch.zeros(size, dtype=torch.int64))

    def target_ids(self) -> Tensor:
        """Target id of every draft id, [draft vocabulary]."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t


def per_layer(attention: Attend, layers: int) -> list[Callable[..., Tensor]]:
    """`attention` with its layer number filled in, for each layer."""
    return [functools.partial(attention, number) for number in range(layers)]
