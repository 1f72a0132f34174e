"""Hybrid targets: Gated DeltaNet and gated full attention in turn, from a Hugging Face folder.

Sources: Qwen3-Next and Qwen3.5 as Hugging Face Transformers runs them; Gated DeltaNet (arXiv 2412.06464);
gated attention (arXiv 2505.06708). Norm weights but the output norm's are stored minus one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.engine.cache import KVCache, Window
from reference_mechanisms.engine.rows import Rows
from reference_mechanisms.engine.target import Forward
from reference_mechanisms.errors import TargetError
from reference_mechanisms.kernels.step.delta import TORCH_DELTA, DeltaKernels
from reference_mechanisms.kernels.step.delta_form import KernelDeltaMixer, Places
from reference_mechanisms.kernels.step.tree_choice import delta_kernels_for
from reference_mechanisms.targets.checkpoint import Checkpoint
from reference_mechanisms.targets.delta_wy import DenseDeltaMixer, Plans
from reference_mechanisms.targets.gated_delta import (
    DeltaForm,
    DeltaInputs,
    DeltaMixer,
    DeltaSizes,
    DeltaWeights,
)
from reference_mechanisms.targets.hybrid_cache import HybridCache
from reference_mechanisms.targets.hybrid_config import HybridConfig, read_hybrid_config
from reference_mechanisms.targets.llama import HEAD, KEY_BUCKET, RECOMPUTED, check_exit
from reference_mechanisms.targets.matrices import Linear, Matrices, PlainMatrices, Source
from reference_mechanisms.targets.rope import rotate_, rotation_table
from reference_mechanisms.targets.tree_attention import attention_of


class DeltaLayer(NamedTuple):
    """Gated DeltaNet with the products around it."""

    projections: Linear  # to queries, keys, values, z, b and a, in the order of the checkpoint
    mixer: DeltaForm
    output: Linear


class AttentionLayer(NamedTuple):
    """Gated full attention."""

    qkv: Linear  # to query and gate of each head in turn, then keys, then values
    qk_norm: Tensor  # [heads + kv_heads, head_dim], float32, one added
    output: Linear


class HybridLayer(NamedTuple):
    """One decoder layer of either kind."""

    input_norm: Tensor  # [hidden], float32, one added
    mixing: DeltaLayer | AttentionLayer
    post_norm: Tensor  # as input_norm
    gate_up: Linear
    down: Linear


class Mixing(NamedTuple):
    """What the layers of one forward need to know of its rows."""

    rotations: Tensor  # of each row, as `rope.rotate_` takes them
    attend: Callable[[int, Tensor], Tensor]  # (attention layer, rotated qkv) -> attended
    recur: Callable[[int, Any, DeltaInputs], Tensor]  # (recurrent layer, its mixer, inputs) -> outputs


class HybridTarget:
    """A target on one device; it holds no sequence, those live in the cache."""

    def __init__(
        self,
        config: HybridConfig,
        checkpoint: Source,
        dtype: torch.dtype,
        device: torch.device,
        matrices: Matrices | None = None,
    ) -> None:
        """Take every tensor of the checkpoint.

        Args:
            config: of the model.
            checkpoint: its tensors.
            dtype: to compute in; recurrent states are float32 whatever it is.
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
        prefix, sizes = config.layout.prefix, (config.vocab_size, config.hidden_size)
        embedding = f"{prefix}embed_tokens.weight"
        self._embedding = self._matrices.table(embedding, *sizes)
        self._layers = [
            _take_layer(config, number, take, self._matrices, f"{prefix}layers.{number}.")
            for number in range(config.layers)
        ]
        kernels = delta_kernels_for(device, dtype)
        if kernels is not TORCH_DELTA:  # the bits of recorded steps, and a launch in place of dozens
            self._layers = in_kernels(self._layers, kernels, Places(config.delta.kernel, device))
        self._final_norm = _centred(take(f"{prefix}norm.weight", config.hidden_size))
        if config.tied_head:
            if HEAD in checkpoint and not torch.equal(take(HEAD, *sizes), take(embedding, *sizes)):
                raise TargetError(
                    f"{checkpoint.folder}: config.json says `tie_word_embeddings`, but {HEAD} is stored and "
                    f"differs from {embedding}"
                )
            self._head = self._embedding.linear()
        else:
            self._head = self._matrices.linear([(HEAD, config.vocab_size)], config.hidden_size, None)
        checkpoint.refuse_unused(RECOMPUTED, config.layout.others)
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

    def straight_rotations(self, positions: int) -> Tensor:
        """A table in the form of `rope.rotation_table` that leaves a head as it is."""
        size = (positions, 1, self.config.head_dim)
        ones = torch.ones(size, dtype=self.dtype, device=self.device)
        return torch.stack((ones, torch.zeros_like(ones)), dim=1)

    def shallow(self, layers: int) -> HybridTarget:
        """The first so many layers under the final norm and the head, of the same weights: an early exit.

        Raises:
            TargetError: there are not more layers than that.
        """
        check_exit(layers, self.config.layers)
        found = copy.copy(self)
        found.config = dataclasses.replace(self.config, kinds=self.config.kinds[:layers])
        found._layers = self._layers[:layers]
        return found

    def windowed(self, window: Window) -> HybridTarget:
        """The same weights, whose attention layers see no more than a window of what is cached."""
        found = copy.copy(self)
        found._window = window
        return found

    def dense_trees(self) -> HybridTarget:
        """The same weights, recurrent layers in the ancestor-masked WY form: fast, and not bit-exact.

        Raises:
            TargetError: float32 products are set to be rounded to fewer bits.
        """
        found, plans = copy.copy(self), Plans()
        found._layers = [_dense(layer, plans) for layer in self._layers]
        return found

    def new_cache(self, slots: int, capacity: int) -> HybridCache:
        """A cache for `slots` requests of up to `capacity` positions."""
        config = self.config
        kv = KVCache(
            layers=config.kinds.count("full_attention"),
            slots=slots,
            kv_heads=config.kv_heads,
            capacity=capacity,
            head_dim=config.head_dim,
            bucket=KEY_BUCKET,
            dtype=self.dtype,
            device=self.device,
            window=self._window,
        )
        if kv.capacity > len(self.rotations):
            table = rotation_table(config.rope, config.rotary_dim, kv.capacity, self.dtype)
            self.rotations = table.to(self.device)
        return HybridCache(kv, config.delta, config.kinds.count("linear_attention"))

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: HybridCache, taps: Sequence[int] = ()) -> Forward:
        """Run all layers on packed rows, from the committed state of each request.

        Keys and values are written behind the cache's lengths, and the recurrent layers leave what a
        commit replays; states and lengths stay as they are.

        Args:
            rows: what to run; rows of a slot begin at its length.
            cache: of this target, holding the sequences the rows continue.
            taps: layers, counted from 0, whose output is wanted; -1 is the embedding.

        Raises:
            ValueError: the rows do not continue the cache, or their parents are no tree.
        """
        cache.open(rows)
        attention = attention_of(rows, cache.kv, self.config.heads, self.dtype)

        def recur(layer: int, mixer: DeltaForm, inputs: DeltaInputs) -> Tensor:
            outputs, first = [], 0
            for segment in rows.segments:
                mine = DeltaInputs(*(part[first : first + segment.rows] for part in inputs))
                root = cache.state(segment.slot, layer)
                output, stash = mixer.verify(root, mine, cache.parents(segment.slot))
                cache.leave(segment.slot, stash)
                outputs.append(output)
                first += segment.rows
            return torch.cat(outputs)

        rotations = self.rotations[torch.tensor(rows.positions, device=self.device)]
        ids = torch.tensor(rows.token_ids, device=self.device)
        return self.run(ids, Mixing(rotations, attention, recur), taps)

    @torch.inference_mode()
    def run(self, token_ids: Tensor, mixing: Mixing, taps: Sequence[int] = ()) -> Forward:
        """All matrix products of a forward; how rows see each other is told by `mixing`.

        Args:
            token_ids: [rows].
            mixing: of the rows.
            taps: as in `forward`.
        """
        config = self.config
        eps, hidden = config.norm_eps, self._embedding(token_ids)
        seen = {-1: hidden}
        ran = dict.fromkeys(config.kinds, 0)  # layers of each kind
        for number, (kind, layer) in enumerate(zip(config.kinds, self._layers, strict=True)):
            normed = centred_norm(hidden, layer.input_norm, eps)
            if isinstance(layer.mixing, DeltaLayer):
                mixed = self._recur(layer.mixing, normed, mixing, ran[kind])
            else:
                mixed = self._attend(layer.mixing, normed, mixing, ran[kind])
            ran[kind] += 1
            hidden = hidden + mixed
            gate, up = layer.gate_up(centred_norm(hidden, layer.post_norm, eps)).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate).mul_(up))
            if number in taps:
                seen[number] = hidden
        normed = centred_norm(hidden, self._final_norm, eps)
        return Forward(hidden=normed, taps=tuple(seen[tap] for tap in taps))

    @torch.inference_mode()
    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [..., hidden] of ids [...], for drafters that share them."""
        return self._embedding(token_ids)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocabulary] in the target's own type, from rows of `Forward.hidden`."""
        return self._head(hidden)

    def _recur(self, layer: DeltaLayer, normed: Tensor, mixing: Mixing, number: int) -> Tensor:
        split = _split_packed if self.config.layout.packed else _split_separate
        inputs = split(layer.projections(normed), self.config.delta)
        return layer.output(mixing.recur(number, layer.mixer, inputs))

    def _attend(self, layer: AttentionLayer, normed: Tensor, mixing: Mixing, number: int) -> Tensor:
        config, count = self.config, len(normed)
        projected = layer.qkv(normed).view(count, 2 * (config.heads + config.kv_heads), config.head_dim)
        doubled, kv = torch.split(projected, [2 * config.heads, 2 * config.kv_heads], dim=1)
        # The sigmoid runs over one head at a time, so that a row's bits do not depend on the others.
        query, gate = doubled.view(count, config.heads, 2, config.head_dim).unbind(2)
        qkv = torch.cat((query, kv), dim=1)
        rotated = qkv[:, : -config.kv_heads]
        rotated.copy_(centred_norm(rotated, layer.qk_norm, config.norm_eps))
        rotate_(rotated[..., : config.rotary_dim], mixing.rotations)
        attended = mixing.attend(number, qkv).view(gate.shape)
        return layer.output((attended * gate.sigmoid()).flatten(1))


def in_kernels(layers: Sequence[HybridLayer], kernels: DeltaKernels, places: Places) -> list[HybridLayer]:
    """The same weights, recurrent layers in the kernels of recorded steps."""

    def changed(layer: HybridLayer) -> HybridLayer:
        mixing = layer.mixing
        if not isinstance(mixing, DeltaLayer) or not isinstance(mixing.mixer, DeltaMixer):
            return layer
        return layer._replace(mixing=mixing._replace(mixer=KernelDeltaMixer(mixing.mixer, kernels, places)))

    return [changed(layer) for layer in layers]


def load_hybrid(folder: Path, dtype: torch.dtype, device: torch.device) -> HybridTarget:
    """Load a target from a Hugging Face folder.

    Raises:
        TargetError: the folder is not a complete, unquantised checkpoint of a known architecture.
    """
    config = read_hybrid_config(folder)
    with torch.inference_mode(), Checkpoint(folder) as checkpoint:
        return HybridTarget(config, checkpoint, dtype, device)


def centred_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, in float32; rounds to the type once, as stock does.

    Args:
        x: [..., size].
        scale: [..., size], float32: the stored weight with one added.
        eps: added to the mean square.
    """
    wide = x.float()
    root = wide.pow(2).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * root * scale).to(x.dtype)


def _centred(weight: Tensor) -> Tensor:
    return 1.0 + weight.float()


def _split_packed(projected: Tensor, sizes: DeltaSizes) -> DeltaInputs:
    """Of Qwen3-Next: q, k, v, z of each key head in turn, then b, a of each key head in turn."""
    rows, repeats = len(projected), sizes.value_heads // sizes.key_heads
    wide = repeats * sizes.value_dim
    qkvz, ba = torch.split(projected, [2 * sizes.keys + 2 * sizes.values, 2 * sizes.value_heads], dim=1)
    by_key_head = qkvz.view(rows, sizes.key_heads, -1)
    parts = torch.split(by_key_head, [sizes.key_dim, sizes.key_dim, wide, wide], dim=2)
    query, key, value, z = (part.reshape(rows, -1) for part in parts)
    b, a = (part.reshape(rows, -1) for part in ba.view(rows, sizes.key_heads, 2, repeats).unbind(2))
    return DeltaInputs(torch.cat((query, key, value), dim=1), _by_head(z, sizes), b, a)


def _split_separate(projected: Tensor, sizes: DeltaSizes) -> DeltaInputs:
    """Of Qwen3.5: queries, keys, values; z; b; a."""
    parts = [sizes.channels, sizes.values, sizes.value_heads, sizes.value_heads]
    raw, z, b, a = torch.split(projected, parts, dim=1)
    return DeltaInputs(raw.contiguous(), _by_head(z, sizes), b, a)


def _by_head(z: Tensor, sizes: DeltaSizes) -> Tensor:
    return z.view(len(z), sizes.value_heads, sizes.value_dim)


def _take_layer(
    config: HybridConfig, number: int, take: Callable[..., Tensor], matrices: Matrices, prefix: str
) -> HybridLayer:
    hidden, inner = config.hidden_size, config.intermediate_size
    linear = config.kinds[number] == "linear_attention"
    take_mixing = _take_delta if linear else _take_attention
    gates = [(f"{prefix}mlp.{name}_proj.weight", inner) for name in ("gate", "up")]
    return HybridLayer(
        input_norm=_centred(take(f"{prefix}input_layernorm.weight", hidden)),
        mixing=take_mixing(config, take, matrices, prefix),
        post_norm=_centred(take(f"{prefix}post_attention_layernorm.weight", hidden)),
        gate_up=matrices.linear(gates, hidden, None),
        down=matrices.linear([(f"{prefix}mlp.down_proj.weight", hidden)], inner, None),
    )


def _dense(layer: HybridLayer, plans: Plans) -> HybridLayer:
    mixing = layer.mixing
    if not isinstance(mixing, DeltaLayer):
        return layer
    plain = mixing.mixer.plain if isinstance(mixing.mixer, KernelDeltaMixer) else mixing.mixer
    if not isinstance(plain, DeltaMixer):
        return layer
    return layer._replace(mixing=mixing._replace(mixer=DenseDeltaMixer(plain, plans)))


def _take_delta(
    config: HybridConfig, take: Callable[..., Tensor], matrices: Matrices, prefix: str
) -> DeltaLayer:
    sizes, at = config.delta, f"{prefix}linear_attn."
    if config.layout.packed:
        names = [("qkvz", 2 * sizes.keys + 2 * sizes.values), ("ba", 2 * sizes.value_heads)]
    else:
        names = [("qkv", sizes.channels), ("z", sizes.values), ("b", sizes.value_heads)]
        names.append(("a", sizes.value_heads))
    parts = [(f"{at}in_proj_{name}.weight", rows) for name, rows in names]
    convolution = take(f"{at}conv1d.weight", sizes.channels, 1, sizes.kernel)
    wide = torch.promote_types(convolution.dtype, torch.float32)
    weights = DeltaWeights(
        convolution=convolution.squeeze(1).T.to(wide).contiguous(),
        log_a=take(f"{at}A_log", sizes.value_heads),
        dt_bias=take(f"{at}dt_bias", sizes.value_heads),
        norm=take(f"{at}norm.weight", sizes.value_dim),
    )
    return DeltaLayer(
        projections=matrices.linear(parts, config.hidden_size, None),
        mixer=DeltaMixer(sizes, weights, config.norm_eps),
        output=matrices.linear([(f"{at}out_proj.weight", config.hidden_size)], sizes.values, None),
    )


def _take_attention(
    config: HybridConfig, take: Callable[..., Tensor], matrices: Matrices, prefix: str
) -> AttentionLayer:
    hidden, head_dim, at = config.hidden_size, config.head_dim, f"{prefix}self_attn."

    def linear(parts: Sequence[tuple[str, int]], inputs: int) -> Linear:
        biases = (
            [take(f"{at}{name}_proj.bias", out) for name, out in parts] if config.attention_bias else None
        )
        weights = [(f"{at}{name}_proj.weight", out) for name, out in parts]
        return matrices.linear(weights, inputs, None if biases is None else torch.cat(biases))

    query, key = config.heads * head_dim, config.kv_heads * head_dim
    norms = [_centred(take(f"{at}{part}_norm.weight", head_dim)) for part in "qk"]
    return AttentionLayer(
        qkv=linear([("q", 2 * query), ("k", key), ("v", key)], hidden),
        qk_norm=torch.cat((norms[0].expand(config.heads, -1), norms[1].expand(config.kv_heads, -1))),
        output=linear([("o", hidden)], query),
    )
