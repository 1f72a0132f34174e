"""Drafters with weights as device programs of fixed shape: for single greedy requests, in CUDA graphs.

The same networks as in `trained.py`, over a cache whose length is a number on the device. Padding rows
and rows of a running draft lie behind it: nothing sees them, and the next rows overwrite them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_mechanisms.drafters.blocks import Reach, Sizes
from reference_mechanisms.drafters.context import new_context
from reference_mechanisms.drafters.dflash import DFlash, Head
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.picking import Picker
from reference_mechanisms.kernels.step.choice import Kernels, kernels_for
from reference_mechanisms.kernels.step.twin import Seen, write


class _Places:
    """Keys and values of one request."""

    def __init__(self, sizes: Sizes, reaches: Sequence[Reach], positions: int, like: Tensor) -> None:
        context = new_context(sizes, len(reaches), positions, like.dtype, like.device)
        self.layers = context.window(0, 0, context.capacity)
        self._reaches = reaches
        self._kernels: Kernels = kernels_for(like.device, like.dtype, sizes.head_dim)

    def attention(self, positions: Tensor, end: Tensor) -> _Attention:
        """Of rows at these positions, which also see each other, over everything before `end`."""
        seen = {reach: bounds(positions, end, reach) for reach in set(self._reaches)}
        return _Attention(self.layers, positions, [seen[reach] for reach in self._reaches], self._kernels)


class _Attention:
    """`blocks.Attend` of one forward."""

    def __init__(
        self, layers: Sequence[Tensor], positions: Tensor, seen: Sequence[Seen], kernels: Kernels
    ) -> None:
        self._layers, self._positions, self._seen, self._kernels = layers, positions, seen, kernels

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rows = queries.shape[:-2]
        place = self._layers[layer]
        write(place, self._positions, torch.cat((keys, values), dim=-2).flatten(0, -3))
        found = self._kernels.attend(queries.flatten(0, -3), place, self._seen[layer])
        return found.view(*rows, -1)


def bounds(positions: Tensor, end: Tensor, reach: Reach) -> Seen:
    """What `blocks.visible` says of positions before `end` [1] or [rows], as bounds of each row."""
    low, high = torch.zeros_like(positions), end.expand(len(positions))
    if reach.causal:
        high = positions + 1
    if reach.window is not None:
        low = (positions - reach.window + 1).clamp_min(0)
        high = torch.minimum(high, positions + reach.window)
    return Seen(low, high.contiguous())


class BlockProgram:
    """DFlash, DFlash 2 and DSpark."""

    def __init__(self, model: DFlash, embed: Head, head: Head, drafts: int, positions: int) -> None:
        """Draft with `model`; ends and drafts as in `trained.py`."""
        config = model.config
        self.drafts = drafts
        self._model, self._embed, self._head = model, embed, head
        self._places = _Places(config.sizes, config.reaches, positions + config.rows(drafts), model.fc.weight)
        device = model.fc.weight.device
        self._index = torch.arange(config.rows(drafts), device=device)
        self._masks = torch.full((config.rows(drafts) - 1,), config.mask_token, device=device)
        self._pick = Picker((), config.vocab_size)

    @torch.inference_mode()
    def absorb(self, taps: Tensor, positions: Tensor, following: Tensor, last: Tensor) -> None:
        """As in `protocol.DraftProgram`."""
        del following, last
        made = self._model.context(taps, positions)
        for place, both in zip(self._places.layers, made, strict=True):
            write(place, positions, torch.cat(both, dim=1))

    @torch.inference_mode()
    def draft(self, anchor: Tensor, start: Tensor) -> Tensor:
        """As in `protocol.DraftProgram`."""
        predicting = self._predicting(anchor, start)
        return self._model.draft(predicting, anchor, self._head, self._pick).token_ids[0]

    def _predicting(self, anchor: Tensor, start: Tensor) -> Tensor:
        """Final hidden states of the predicting rows, [1, drafts, hidden]."""
        positions = start + self._index
        hidden = self._model.hidden(
            self._embed(torch.cat((anchor, self._masks))[None]),
            positions[None],
            self._places.attention(positions, start + len(positions)),
        )
        return hidden if self._model.config.anchor_row else hidden[:, 1:]


class ChainProgram:
    """EAGLE-3."""

    def __init__(self, model: Eagle3, embed: Head, head: Head, drafts: int, positions: int) -> None:
        """Draft with `model`; ends and drafts as in `trained.py`."""
        config, weight = model.config, model.fc.weight
        self.drafts = drafts
        self._model, self._embed, self._head = model, embed, head
        self._places = _Places(config.sizes, config.reaches, positions + drafts, weight)
        self._newest = torch.zeros(1, config.sizes.hidden, dtype=weight.dtype, device=weight.device)
        self._pick = Picker((), config.vocab_size)

    @torch.inference_mode()
    def absorb(self, taps: Tensor, positions: Tensor, following: Tensor, last: Tensor) -> None:
        """As in `protocol.DraftProgram`."""
        outputs = self._step(self._model.fuse(taps), following, positions)
        self._newest.copy_(outputs.index_select(0, last))

    @torch.inference_mode()
    def draft(self, anchor: Tensor, start: Tensor) -> Tensor:
        """As in `protocol.DraftProgram`; the anchor is in the newest output row already."""
        del anchor
        outputs = self._newest
        chosen: list[Tensor] = []
        target_ids = self._model.target_ids(self._newest.device)
        for index in range(self.drafts):
            if index:
                outputs = self._step(self._model.handed_on(outputs), chosen[-1], start + (index - 1))
            chosen.append(self._pick(index, self._head(self._model.normed(outputs)), target_ids))
        return torch.cat(chosen)

    def _step(self, features: Tensor, ids: Tensor, positions: Tensor) -> Tensor:
        attention = self._places.attention(positions, positions[-1:] + 1)
        outputs: Tensor = self._model(features, self._embed(ids), positions, attention)
        return outputs
