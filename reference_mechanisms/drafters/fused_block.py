"""DFlash as a device program of few kernels: for single greedy requests on a GPU, in CUDA graphs.

The same network as `dflash.DFlash`, its products fused (query, key and value; gate and up; keys and values
of the context for all layers) and made by `targets.matrices`, so that weights may be packed. What lies
between the products runs in the kernels of a verify step.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.blocks import Reach
from reference_mechanisms.drafters.context import new_context
from reference_mechanisms.drafters.dflash import BlockConfig, Head
from reference_mechanisms.drafters.protocol import DraftProgram, Proposal, Wanted
from reference_mechanisms.drafters.rotation import Rope, rotation
from reference_mechanisms.drafters.static import bounds
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.kernels.step.choice import kernels_for
from reference_mechanisms.kernels.step.twin import WAYS, Seen, Stand, Ways, new_tickets
from reference_mechanisms.request import Request
from reference_mechanisms.targets.config import LlamaConfig
from reference_mechanisms.targets.llama import Layer, take_layer
from reference_mechanisms.targets.matrices import Linear, Matrices, Source


class Weights(NamedTuple):
    """Of a drafter on its device."""

    config: BlockConfig
    join: Linear  # of tapped states, `fc`
    context_norm: Tensor
    context: Linear  # keys, then values, of layer after layer
    context_norms: Tensor | None  # of keys, [layers, kv_heads, head_dim]
    layers: tuple[Layer, ...]
    norm: Tensor
    dtype: torch.dtype
    device: torch.device


def take_weights(
    config: BlockConfig, source: Source, matrices: Matrices, dtype: torch.dtype, device: torch.device
) -> Weights:
    """Take the tensors of a DFlash under their published names.

    Args:
        config: of the drafter.
        source: of the tensors.
        matrices: makes the products from the same source.
        dtype: to compute in.
        device: to compute on.

    Raises:
        DrafterError: the drafter has a vocabulary of its own.
    """
    if config.draft_vocab_size is not None:
        raise DrafterError("fused drafting knows no draft vocabulary smaller than the target's")
    sizes = layer_sizes(config)

    def take(name: str, *shape: int) -> Tensor:
        return source.take(name, shape, dtype).to(device)

    hidden, key = sizes.hidden_size, sizes.kv_heads * sizes.head_dim
    parts = [f"layers.{n}.self_attn.{part}_proj" for n in range(sizes.layers) for part in "kv"]
    biases = torch.cat([take(f"{part}.bias", key) for part in parts]) if sizes.attention_bias else None
    norms = [take(f"layers.{n}.self_attn.k_norm.weight", sizes.head_dim) for n in range(sizes.layers)]
    return Weights(
        config=config,
        join=matrices.linear([("fc.weight", hidden)], len(config.taps) * config.target_hidden, None),
        context_norm=take("hidden_norm.weight", hidden),
        context=matrices.linear([(f"{part}.weight", key) for part in parts], hidden, biases),
        context_norms=torch.stack(norms)[:, None].expand(-1, sizes.kv_heads, -1).contiguous(),
        layers=tuple(take_layer(sizes, take, matrices, f"layers.{n}.") for n in range(sizes.layers)),
        norm=take("norm.weight", hidden),
        dtype=dtype,
        device=device,
    )


def layer_sizes(config: BlockConfig) -> LlamaConfig:
    """The decoder layers of a drafter as those of a target; its ends have no part in it."""
    sizes = config.sizes
    return LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.inner,
        layers=len(config.reaches),
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        norm_eps=sizes.norm_eps,
        rope=config.rope.scaling,
        max_positions=1,
        tied_head=False,
        attention_bias=sizes.attention_bias,
        mlp_bias=False,
        qk_norm=sizes.qk_norm,
    )


def rotations_of(rope: Rope, head_dim: int, positions: int, like: Tensor) -> Tensor:
    """The table that the kernels read, [positions, 2, 1, head_dim], as `targets.rope.rotation_table`."""
    table = rotation(rope, head_dim, torch.arange(positions, device=like.device), like.dtype)
    table = table.transpose(0, 1).contiguous()
    table[:, 1, :, : head_dim // 2].neg_()
    return table


class FusedBlock:
    """`protocol.DraftProgram` of a DFlash."""

    def __init__(
        self, weights: Weights, embed: Head, head: Head, drafts: int, positions: int, ways: Ways = WAYS
    ) -> None:
        """Draft with these weights.

        Args:
            weights: of the drafter.
            embed: of the target, ids to states.
            head: of the target, normed states to logits.
            drafts: tokens of a draft.
            positions: most that are absorbed or drafted from.
            ways: of the kernels.
        """
        self.drafts = drafts
        self._weights, self._embed, self._head = weights, embed, head
        config, sizes = weights.config, weights.config.sizes
        rows = config.rows(drafts)
        cache = new_context(sizes, len(config.reaches), positions + rows, weights.dtype, weights.device)
        self._places = cache.window(0, 0, cache.capacity)
        self._rotations = rotations_of(config.rope, sizes.head_dim, cache.capacity, weights.norm)
        self._kernels = kernels_for(
            weights.device,
            weights.dtype,
            sizes.head_dim,
            ways,
            [getattr(layer.output, "units", None) for layer in weights.layers],
        )
        self._index = torch.arange(rows, device=weights.device)
        self._ids = torch.full((rows,), config.mask_token, device=weights.device)  # behind the anchor
        self._ends = torch.full((rows,), rows, device=weights.device)
        self._low = torch.zeros(rows, dtype=torch.int64, device=weights.device)
        self._tickets = new_tickets(rows, sizes.kv_heads, weights.device)

    @torch.inference_mode()
    def absorb(self, taps: Tensor, positions: Tensor, following: Tensor, last: Tensor) -> None:
        """As in `protocol.DraftProgram`."""
        del following, last
        weights, sizes = self._weights, self._weights.config.sizes
        stand = self._stand(positions, Seen(positions, positions))  # nothing attends
        joined = self._kernels.ops(stand).norm(weights.join(taps), weights.context_norm)
        both = weights.context(joined).view(len(taps), -1, 2 * sizes.kv_heads, sizes.head_dim)
        self._kernels.keep(both, weights.context_norms, stand)

    @torch.inference_mode()
    def draft(self, anchor: Tensor, start: Tensor) -> Tensor:
        """As in `protocol.DraftProgram`."""
        return self._kernels.best(self.scores(anchor, start))

    def scores(self, anchor: Tensor, start: Tensor) -> Tensor:
        """Logits [drafts, vocabulary] behind the anchor; arguments as of `draft`."""
        weights, config = self._weights, self._weights.config
        sizes, rows = config.sizes, len(self._index)
        positions = start + self._index
        ops = {
            reach: self._kernels.ops(self._stand(positions, self._seen(start, positions, reach)))
            for reach in set(config.reaches)
        }
        self._ids[:1].copy_(anchor)
        hidden = self._embed(self._ids)
        norms = [*(layer.input_norm for layer in weights.layers[1:]), weights.norm]
        normed = ops[config.reaches[0]].norm(hidden, weights.layers[0].input_norm)
        for number, (layer, next_norm) in enumerate(zip(weights.layers, norms, strict=True)):
            mine = ops[config.reaches[number]]
            qkv = layer.qkv(normed).view(rows, sizes.heads + 2 * sizes.kv_heads, sizes.head_dim)
            attended = mine.attend(number, qkv, layer.qk_norm)
            hidden, normed = mine.add_norm(hidden, layer.output(attended), layer.post_norm)
            hidden, normed = mine.add_norm(hidden, layer.down(layer.opened(normed, mine)), next_norm)
        return self._head(normed if config.anchor_row else normed[1:])

    def _seen(self, start: Tensor, positions: Tensor, reach: Reach) -> Seen:
        """What the rows of the block see."""
        if reach == Reach():  # everything: the common case, in one launch
            return Seen(self._low, start + self._ends)
        return bounds(positions, start + len(positions), reach)

    def _stand(self, positions: Tensor, seen: Seen) -> Stand:
        eps = self._weights.config.sizes.norm_eps
        return Stand(positions, seen, self._rotations, self._places, eps, self._tickets)


class FusedDrafter:
    """`protocol.StaticDrafter` that has a program only."""

    def __init__(self, weights: Weights, embed: Head, head: Head, drafts: int, ways: Ways = WAYS) -> None:
        """Draft with these weights; arguments as of `FusedBlock`."""
        self._weights, self._embed, self._head, self._drafts = weights, embed, head, drafts
        self._ways = ways

    @property
    def taps(self) -> tuple[int, ...]:
        """As in `protocol.ContextDrafter`."""
        return self._weights.config.taps

    @property
    def key(self) -> Hashable:
        """As in `protocol.StaticDrafter`."""
        return (id(self._weights), self._drafts)

    def program(self, positions: int) -> DraftProgram:
        """As in `protocol.StaticDrafter`."""
        return FusedBlock(self._weights, self._embed, self._head, self._drafts, positions, self._ways)

    def begin(self, slot: int, request: Request) -> None:
        """Refused: see `propose`."""
        self.propose(())
        del slot, request

    def extend(self, slot: int, taps: Tensor) -> None:
        """Refused: see `propose`."""
        self.propose(())
        del slot, taps

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """Refused.

        Raises:
            DrafterError: always; this drafter runs on the device alone.
        """
        del wanted
        raise DrafterError("this drafter serves single greedy requests in steps of fixed shape only")
