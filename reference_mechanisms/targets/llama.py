"""Dense Llama-type targets: Llama and Qwen3, from a Hugging Face folder.

Here are the weights and the matrix products; what lies between them is in `layer_ops.py`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache, Window
from reference_mechanisms.engine.rows import Rows
from reference_mechanisms.engine.target import Forward
from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.checkpoint import Checkpoint
from reference_mechanisms.targets.config import LlamaConfig, read_config
from reference_mechanisms.targets.layer_ops import LayerOps, TorchOps
from reference_mechanisms.targets.matrices import Linear, Matrices, PlainMatrices, Source
from reference_mechanisms.targets.rope import rotation_table
from reference_mechanisms.targets.tree_attention import attention_of

KEY_BUCKET = 256  # positions; attention reads whole buckets
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
RECOMPUTED = ("rotary_emb.inv_freq",)  # old exporters store what config.json already says


class Layer(NamedTuple):
    """Weights of one decoder layer, fused where stock has several products of one input."""

    input_norm: Tensor  # [hidden]
    qkv: Linear
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]: the query norm repeated, then the key norm
    output: Linear
    post_norm: Tensor  # [hidden]
    gate_up: Linear
    down: Linear
    opens: bool = False  # whether `gate_up` gives what the gate lets through, not both halves

    def opened(self, normed: Tensor, ops: LayerOps) -> Tensor:
        """What the gate lets through, [rows, inner] of [rows, hidden]."""
        found = self.gate_up(normed)
        return found if self.opens else ops.gate(found)


class LlamaTarget:
    """A target on one device; it holds no sequence, those live in the cache."""

    def __init__(
        self,
        config: LlamaConfig,
        checkpoint: Source,
        dtype: torch.dtype,
        device: torch.device,
        matrices: Matrices | None = None,
    ) -> None:
        """Take every tensor of the checkpoint.

        Args:
            config: of the model.
            checkpoint: its tensors.
            dtype: to compute in.
            device: to compute on.
            matrices: makes the products from the checkpoint; None for plain ones.

        Raises:
            TargetError: a tensor is missing, unused or does not fit.
        """
        self.config = config
        self.dtype = dtype
        self.device = device

        def take(name: str, *shape: int) -> Tensor:
            return checkpoint.take(name, shape, dtype).to(device)

        self._matrices = matrices or PlainMatrices(checkpoint, dtype, device)
        sizes = (config.vocab_size, config.hidden_size)
        self._embedding = self._matrices.table(EMBEDDING, *sizes)
        prefixes = (f"model.layers.{n}." for n in range(config.layers))
        self._layers = [take_layer(config, take, self._matrices, prefix) for prefix in prefixes]
        self._final_norm = take("model.norm.weight", config.hidden_size)
        if config.tied_head:
            if HEAD in checkpoint and not torch.equal(take(HEAD, *sizes), take(EMBEDDING, *sizes)):
                raise TargetError(
                    f"{checkpoint.folder}: config.json says `tie_word_embeddings`, but {HEAD} is stored and "
                    f"differs from {EMBEDDING}"
                )
            self._head = self._embedding.linear()
        else:
            self._head = self._matrices.linear([(HEAD, config.vocab_size)], config.hidden_size, None)
        checkpoint.refuse_unused(RECOMPUTED)
        self._window: Window | None = None
        self.rotations = torch.empty(0)  # of every position of the largest cache, `rope.rotation_table`

    @property
    def linear_kernel(self) -> str:
        """How linear layers are computed here, for the report."""
        return self._matrices.kernel

    @property
    def rows_round_alike(self) -> bool:
        """Whether a product gives a row the same bits whatever the number of rows."""
        return self._matrices.rows_round_alike

    def shallow(self, layers: int) -> LlamaTarget:
        """The first so many layers under the final norm and the head, of the same weights: an early exit.

        Raises:
            TargetError: there are not more layers than that.
        """
        check_exit(layers, self.config.layers)
        found = copy.copy(self)
        found.config = dataclasses.replace(self.config, layers=layers)
        found._layers = self._layers[:layers]
        return found

    def windowed(self, window: Window) -> LlamaTarget:
        """The same weights, seeing no more than a window of what is cached."""
        found = copy.copy(self)
        found._window = window
        return found

    def new_cache(self, slots: int, capacity: int) -> KVCache:
        """A cache for `slots` requests of up to `capacity` positions."""
        config = self.config
        cache = KVCache(
            layers=config.layers,
            slots=slots,
            kv_heads=config.kv_heads,
            capacity=capacity,
            head_dim=config.head_dim,
            bucket=KEY_BUCKET,
            dtype=self.dtype,
            device=self.device,
            window=self._window,
        )
        if cache.capacity > len(self.rotations):
            table = rotation_table(config.rope, config.head_dim, cache.capacity, self.dtype)
            self.rotations = table.to(self.device)
        return cache

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache, taps: Sequence[int] = ()) -> Forward:
        """Run all layers on packed rows and write their keys and values behind the cache's lengths.

        Args:
            rows: what to run; nothing is committed.
            cache: of this target, holding the sequences the rows continue.
            taps: layers, counted from 0, whose output is wanted; -1 is the embedding.
        """
        config = self.config
        attention = attention_of(rows, cache, config.heads, self.dtype)
        rotations = self.rotations[torch.tensor(rows.positions, device=self.device)]
        ops = TorchOps(config.norm_eps, config.kv_heads, rotations, attention)
        return self.run(torch.tensor(rows.token_ids, device=self.device), ops, taps)

    @torch.inference_mode()
    def run(self, token_ids: Tensor, ops: LayerOps, taps: Sequence[int] = ()) -> Forward:
        """All matrix products of a forward; what lies between them is done by `ops`.

        Args:
            token_ids: [rows].
            ops: know where the rows stand and what they see.
            taps: as in `forward`.
        """
        config, count = self.config, len(token_ids)
        hidden = self._embedding(token_ids)
        seen = {-1: hidden}
        norms = [*(layer.input_norm for layer in self._layers[1:]), self._final_norm]
        normed = ops.norm(hidden, self._layers[0].input_norm)
        for number, (layer, next_norm) in enumerate(zip(self._layers, norms, strict=True)):
            qkv = layer.qkv(normed).view(count, config.heads + 2 * config.kv_heads, config.head_dim)
            attended = ops.attend(number, qkv, layer.qk_norm)
            hidden, normed = ops.add_norm(hidden, layer.output(attended), layer.post_norm)
            hidden, normed = ops.add_norm(hidden, layer.down(layer.opened(normed, ops)), next_norm)
            if number in taps:
                seen[number] = hidden
        return Forward(hidden=normed, taps=tuple(seen[tap] for tap in taps))

    def behind_attention(self) -> tuple[Tensor | None, ...]:
        """What the product behind each layer's attention reads, where most of it lies in one tensor."""
        return tuple(getattr(layer.output, "units", None) for layer in self._layers)

    @torch.inference_mode()
    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [..., hidden] of ids [...], for drafters that share them."""
        return self._embedding(token_ids)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocabulary] in the target's own type, from rows of `Forward.hidden`."""
        return self._head(hidden)


def load_llama(folder: Path, dtype: torch.dtype, device: torch.device) -> LlamaTarget:
    """Load a target from a Hugging Face folder.

    Raises:
        TargetError: the folder is not a complete, unquantised checkpoint of a known architecture.
    """
    config = read_config(folder)
    with torch.inference_mode(), Checkpoint(folder) as checkpoint:
        return LlamaTarget(config, checkpoint, dtype, device)


def check_exit(layers: int, all_layers: int) -> None:
    """Hold that an early exit lies inside the target.

    Raises:
        TargetError: it does not.
    """
    if not 1 <= layers < all_layers:
        raise TargetError(
            f"an early exit behind {layers} layers: the target has {all_layers}; give 1 to {all_layers - 1}"
        )


def take_layer(config: LlamaConfig, take: Callable[..., Tensor], matrices: Matrices, prefix: str) -> Layer:
    """The weights of one layer.

    Args:
        config: of the target.
        take: gives a tensor by name and sizes.
        matrices: makes the products.
        prefix: of the layer's names.
    """
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, key = config.heads * head_dim, config.kv_heads * head_dim

    def linear(parts: Sequence[tuple[str, int]], inputs: int, *, bias: bool) -> Linear:
        biases = [take(f"{prefix}{name}.bias", out) for name, out in parts] if bias else None
        weights = [(f"{prefix}{name}.weight", out) for name, out in parts]
        return matrices.linear(weights, inputs, None if biases is None else torch.cat(biases))

    qk_norm = None
    if config.qk_norm:
        query_norm, key_norm = (take(f"{prefix}self_attn.{part}_norm.weight", head_dim) for part in "qk")
        qk_norm = torch.cat((query_norm.expand(config.heads, -1), key_norm.expand(config.kv_heads, -1)))
    projections = [("self_attn.q_proj", query), ("self_attn.k_proj", key), ("self_attn.v_proj", key)]
    gates = [("mlp.gate_proj", inner), ("mlp.up_proj", inner)]
    opened = None
    if not config.mlp_bias:
        opened = matrices.gated([(f"{prefix}{name}.weight", rows) for name, rows in gates], hidden)
    return Layer(
        input_norm=take(f"{prefix}input_layernorm.weight", hidden),
        qkv=linear(projections, hidden, bias=config.attention_bias),
        qk_norm=qk_norm,
        output=linear([("self_attn.o_proj", hidden)], query, bias=config.attention_bias),
        post_norm=take(f"{prefix}post_attention_layernorm.weight", hidden),
        gate_up=opened or linear(gates, hidden, bias=config.mlp_bias),
        down=linear([("mlp.down_proj", hidden)], inner, bias=config.mlp_bias),
        opens=opened is not None,
    )
