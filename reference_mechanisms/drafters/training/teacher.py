"""The frozen target, many sequences at once: writes the training text, and gives its hidden states.

The engine's target (`targets/llama.py`) packs rows for exactness; this one has a batch dimension and
whole-sequence attention, for throughput. Weights are the same tensors of the same folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.targets.checkpoint import Checkpoint
from reference_mechanisms.targets.config import LlamaConfig, read_config
from reference_mechanisms.targets.llama import EMBEDDING, HEAD, RECOMPUTED, Layer, take_layer
from reference_mechanisms.targets.matrices import Linear, PlainMatrices
from reference_mechanisms.targets.rope import rotation_table


class Product(NamedTuple):
    """y = x W^T + b over the last dimension of x."""

    weight: Tensor  # [out_features, in_features]
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., out_features]."""
        return F.linear(x, self.weight, self.bias)


class _Products(PlainMatrices):
    def linear(self, parts: Sequence[tuple[str, int]], columns: int, bias: Tensor | None) -> Product:
        return Product(torch.cat([self._take(name, rows, columns) for name, rows in parts]), bias)


class Seen(NamedTuple):
    """What a forward leaves."""

    hidden: Tensor  # [sequences, positions, hidden], after the final norm: the input of the head
    taps: Tensor  # [sequences, positions, taps x hidden]: outputs of the tapped layers side by side


def weight_of(product: Linear) -> Tensor:
    """The matrix of a teacher's product, [out_features, in_features]."""
    return cast(Product, product).weight


class TextCache:
    """Keys and values of sequences that end at the same column and begin where they like."""

    def __init__(self, teacher: Teacher, first: Tensor, capacity: int) -> None:
        """Empty.

        Args:
            teacher: whose.
            first: column at which each sequence begins, [sequences].
            capacity: columns.
        """
        config = teacher.config
        shape = (len(first), config.kv_heads, capacity, config.head_dim)
        self.first = first
        self.keys = [torch.zeros(shape, dtype=teacher.dtype, device=first.device) for _ in teacher.layers]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.columns = 0

    def keep(self, rows: Tensor) -> None:
        """Go on with these sequences only."""
        self.first = self.first[rows]
        for layer in range(len(self.keys)):
            self.keys[layer] = self.keys[layer][rows]
            self.values[layer] = self.values[layer][rows]


class Teacher:
    """A dense Llama-type target without gradients."""

    def __init__(self, config: LlamaConfig, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device):
        """Take every tensor of the checkpoint.

        Raises:
            TargetError: a tensor is missing, unused or does not fit.
        """
        self.config, self.dtype, self.device = config, dtype, device
        self._decodes_fast = device.type == "cuda" and dtype != torch.float32

        def take(name: str, *shape: int) -> Tensor:
            return checkpoint.take(name, shape, dtype).to(device)

        hidden = config.hidden_size
        self.embedding = take(EMBEDDING, config.vocab_size, hidden)
        self.head = self.embedding
        if HEAD in checkpoint or not config.tied_head:
            self.head = take(HEAD, config.vocab_size, hidden)
        self.final_norm = take("model.norm.weight", hidden)
        products = _Products(checkpoint, dtype, device)
        prefixes = (f"model.layers.{number}." for number in range(config.layers))
        self.layers = [take_layer(config, take, products, prefix) for prefix in prefixes]
        checkpoint.refuse_unused(RECOMPUTED)
        table = rotation_table(config.rope, config.head_dim, config.max_positions, dtype)
        self._rotations = table.to(device)

    @torch.no_grad()
    def forward(self, token_ids: Tensor, taps: Sequence[int] = (), cache: TextCache | None = None) -> Seen:
        """Run all layers.

        Args:
            token_ids: [sequences, positions]. Without a cache sequences begin at column 0, and padding
                behind them is harmless; with one they continue it.
            taps: layers whose output is wanted; -1 is the embedding.
            cache: written at its end; moved on by the positions.
        """
        config = self.config
        count, rows = token_ids.shape
        start = cache.columns if cache is not None else 0
        columns = torch.arange(start, start + rows, device=self.device)
        positions, mask = columns[None], None
        if cache is not None:
            positions = (columns[None] - cache.first[:, None]).clamp_min(0)
        if cache is not None and not (rows == 1 and self._decodes_fast):
            index = torch.arange(start + rows, device=self.device)
            inside = (index >= cache.first[:, None, None]) & (index <= columns[None, :, None])
            mask = (inside | (index == columns[None, :, None]))[:, None]  # padding sees itself
        rotations = self._rotations[positions].movedim(2, 0)  # [2, sequences or 1, positions, 1, head_dim]
        hidden = self.embedding[token_ids]
        seen = {-1: hidden}
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv(_normed(hidden, layer.input_norm, config.norm_eps))
            qkv = qkv.view(count, rows, -1, config.head_dim)
            attended = self._attend(number, layer, qkv, rotations, mask, cache)
            hidden = hidden + layer.output(attended)
            normed = _normed(hidden, layer.post_norm, config.norm_eps)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate) * up)
            if number in taps:
                seen[number] = hidden
        if cache is not None:
            cache.columns += rows
        tapped = torch.cat([seen[tap] for tap in taps], dim=-1) if taps else hidden[..., :0]
        return Seen(_normed(hidden, self.final_norm, config.norm_eps), tapped)

    def _attend(
        self,
        number: int,
        layer: Layer,
        qkv: Tensor,
        rotations: Tensor,
        mask: Tensor | None,
        cache: TextCache | None,
    ) -> Tensor:
        config = self.config
        count, rows = qkv.shape[:2]
        queries, keys, values = torch.split(qkv, [config.heads, config.kv_heads, config.kv_heads], dim=2)
        if layer.qk_norm is not None:
            queries = _normed(queries, layer.qk_norm[0], config.norm_eps)
            keys = _normed(keys, layer.qk_norm[-1], config.norm_eps)
        queries, keys = (
            _rotated(queries, rotations).transpose(1, 2),
            _rotated(keys, rotations).transpose(1, 2),
        )
        values = values.transpose(1, 2)
        if cache is not None:
            end = cache.columns + rows
            cache.keys[number][:, :, cache.columns : end] = keys
            cache.values[number][:, :, cache.columns : end] = values
            keys, values = cache.keys[number][:, :, :end], cache.values[number][:, :, :end]
        if cache is not None and rows == 1 and self._decodes_fast:
            from reference_mechanisms.kernels.training.decode_attention import decode_attention  # noqa: PLC0415

            all_keys, all_values = cache.keys[number], cache.values[number]
            return decode_attention(
                queries.reshape(count, config.heads, -1), all_keys, all_values, cache.first, end
            )[:, None]
        if rows == 1:  # the query heads of a key head are rows of one product
            grouped = queries.reshape(count, config.kv_heads, -1, config.head_dim)
            found = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
            return found.reshape(count, 1, -1)
        if mask is not None:  # kernels with a mask know no shared key heads
            shared = config.heads // config.kv_heads
            keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
        found = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=mask is None
        )
        return found.transpose(1, 2).reshape(count, rows, -1)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocabulary] of rows of `Seen.hidden`."""
        return F.linear(hidden, self.head)


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _rotated(x: Tensor, rotations: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    rotated: Tensor = x * rotations[0] + torch.cat((second, first), dim=-1) * rotations[1]
    return rotated


def load_teacher(folder: Path, dtype: torch.dtype, device: torch.device) -> Teacher:
    """Load a target from a Hugging Face folder.

    Raises:
        TargetError: the folder is not a complete, unquantised checkpoint of a known architecture.
    """
    with torch.no_grad(), Checkpoint(folder) as checkpoint:
        return Teacher(read_config(folder), checkpoint, dtype, device)
