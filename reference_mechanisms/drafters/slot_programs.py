"""Drafters with weights as device programs for many requests: fixed shapes, and no question to the host.

The networks of `trained.py`, over one cache of all slots. Where a slot stands is a number on the device;
rows of a running draft lie behind it and are overwritten. Seats without a request use the scratch slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from reference_mechanisms.drafters.blocks import Reach, Sizes
from reference_mechanisms.drafters.context import BUCKET
from reference_mechanisms.drafters.dflash import DFlash, Drafted, Head
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.picking import Picker
from reference_mechanisms.drafters.static import bounds
from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.kernels.slots.choice import slot_kernels_for
from reference_mechanisms.kernels.slots.packing import Packed, SlotStand
from reference_mechanisms.kernels.slots.twin import write
from reference_mechanisms.kernels.step.twin import Seen


class Seats(NamedTuple):
    """Requests that are drafted for; int64 [seats]."""

    slots: Tensor
    anchors: Tensor  # newest tokens
    starts: Tensor  # their positions


class SlotDraftProgram(Protocol):
    """Drafts for many requests at once."""

    @property
    def drafts(self) -> int:
        """Most draft tokens of a request."""
        ...

    def absorb(self, taps: Tensor, packed: Packed, following: Tensor, last: Tensor) -> None:
        """Take in positions; those of a seat behind its `last` row are overwritten later.

        Args:
            taps: tapped hidden states side by side, [rows, taps x hidden].
            packed: where the rows stand.
            following: token behind each position, [rows].
            last: row of the newest committed position of each seat, [seats].
        """
        ...

    def draft(self, seats: Seats, drafts: int) -> Drafted:
        """The best `drafts` tokens behind each anchor."""
        ...


class SlotContext:
    """Keys and values of all slots, and attention of blocks of rows over them."""

    def __init__(
        self, sizes: Sizes, reaches: Sequence[Reach], slots: int, positions: int, like: Tensor
    ) -> None:
        """Allocate for so many requests of so many positions, drafts among them, and a scratch slot."""
        cache = KVCache(
            layers=len(reaches),
            slots=slots + 1,
            kv_heads=sizes.kv_heads,
            capacity=positions,
            head_dim=sizes.head_dim,
            bucket=BUCKET,
            dtype=like.dtype,
            device=like.device,
        )
        self.places, self.capacity, self._reaches = cache.places(), cache.capacity, reaches
        self._nothing, self._eps = torch.empty(0, dtype=like.dtype, device=like.device), sizes.norm_eps
        self.kernels = slot_kernels_for(like.device, like.dtype, sizes.head_dim)

    def stand(self, packed: Packed, seen: Seen, most: int, rotations: Tensor | None = None) -> SlotStand:
        """Of rows, with up to `most` of a seat."""
        table = self._nothing if rotations is None else rotations
        return SlotStand(packed, seen, table, self.places, self._eps, most, BUCKET)

    def attention(self, packed: Packed, ends: Tensor, most: int) -> SlotBlocks:
        """Of rows that see everything before `ends` [rows], as far as their layer reaches."""
        stands = {
            reach: self.stand(packed, bounds(packed.positions, ends, reach), most)
            for reach in set(self._reaches)
        }
        return SlotBlocks([stands[reach] for reach in self._reaches], self)


class SlotBlocks:
    """`blocks.Attend` of one forward."""

    def __init__(self, stands: Sequence[SlotStand], context: SlotContext) -> None:
        """Where the rows stand, for each layer."""
        self._stands, self._context = stands, context

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As `blocks.Attend`."""
        rows, stand = queries.shape[:-2], self._stands[layer]
        write(stand, layer, torch.cat((keys, values), dim=-2).flatten(0, -3))
        return self._context.kernels.attend(queries.flatten(0, -3), layer, stand).view(*rows, -1)


def blocks(slots: Tensor, starts: Tensor, rows: int) -> Packed:
    """Equally many consecutive rows of every seat, from a position on."""
    index = torch.arange(len(slots) * rows, device=slots.device)
    seats, inside = index // rows, index % rows
    first = torch.arange(len(slots), device=slots.device) * rows
    return Packed(
        slots, first, torch.full_like(slots, rows), seats, slots[seats], starts[seats] + inside, inside
    )


class SlotBlockProgram:
    """DFlash, DFlash 2 and DSpark."""

    def __init__(
        self, model: DFlash, embed: Head, head: Head, drafts: int, slots: int, positions: int
    ) -> None:
        """Draft with `model`; ends and drafts as in `trained.py`, slots and positions as of `SlotContext`."""
        config, weight = model.config, model.fc.weight
        self.drafts = drafts
        self._model, self._embed, self._head = model, embed, head
        self._context = SlotContext(
            config.sizes, config.reaches, slots, positions + config.rows(drafts), weight
        )
        self._pick = Picker((), config.vocab_size)

    @torch.inference_mode()
    def absorb(self, taps: Tensor, packed: Packed, following: Tensor, last: Tensor) -> None:
        """As in `SlotDraftProgram`."""
        del following, last
        stand = self._context.stand(packed, Seen(packed.positions, packed.positions), 1)  # nothing attends
        for layer, both in enumerate(self._model.context(taps, packed.positions)):
            write(stand, layer, torch.cat(both, dim=1))

    @torch.inference_mode()
    def draft(self, seats: Seats, drafts: int) -> Drafted:
        """As in `SlotDraftProgram`."""
        config = self._model.config
        rows, count = config.rows(drafts), len(seats.slots)
        packed = blocks(seats.slots, seats.starts, rows)
        ids = torch.full((count, rows), config.mask_token, device=seats.slots.device)
        ids[:, 0] = seats.anchors
        ends = (seats.starts + rows)[packed.seats]
        hidden = self._model.hidden(
            self._embed(ids), packed.positions.view(count, rows), self._context.attention(packed, ends, rows)
        )
        predicting = hidden if config.anchor_row else hidden[:, 1:]
        return self._model.draft(predicting, seats.anchors, self._head, self._pick)


class SlotChainProgram:
    """EAGLE-3."""

    def __init__(
        self, model: Eagle3, embed: Head, head: Head, drafts: int, slots: int, positions: int
    ) -> None:
        """Draft with `model`; arguments as of `SlotBlockProgram`."""
        config, weight = model.config, model.fc.weight
        self.drafts = drafts
        self._model, self._embed, self._head = model, embed, head
        self._context = SlotContext(config.sizes, config.reaches, slots, positions + drafts, weight)
        self._newest = torch.zeros((slots + 1, config.sizes.hidden), dtype=weight.dtype, device=weight.device)
        self._pick = Picker((), config.vocab_size)

    @torch.inference_mode()
    def absorb(self, taps: Tensor, packed: Packed, following: Tensor, last: Tensor) -> None:
        """As in `SlotDraftProgram`."""
        outputs = self._step(self._model.fuse(taps), following, packed, len(taps))
        # A seat without rows keeps what it had.
        found = torch.where(packed.counts[:, None] > 0, outputs[last], self._newest[packed.slots])
        self._newest.index_copy_(0, packed.slots, found)

    @torch.inference_mode()
    def draft(self, seats: Seats, drafts: int) -> Drafted:
        """As in `SlotDraftProgram`; the anchor is in the newest output row already."""
        outputs = newest = self._newest[seats.slots]
        chosen: list[Tensor] = []
        target_ids = self._model.target_ids(newest.device)
        for index in range(drafts):
            if index:
                packed = blocks(seats.slots, seats.starts + (index - 1), 1)
                outputs = self._step(self._model.handed_on(outputs), chosen[-1], packed, 1)
            chosen.append(self._pick(index, self._head(self._model.normed(outputs)), target_ids))
        return Drafted(torch.stack(chosen, dim=1))

    def _step(self, features: Tensor, ids: Tensor, packed: Packed, most: int) -> Tensor:
        attention = self._context.attention(packed, packed.positions + 1, most)
        outputs: Tensor = self._model(features, self._embed(ids), packed.positions, attention)
        return outputs
