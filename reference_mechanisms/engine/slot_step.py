"""Verify steps of many requests as device programs of fixed shape: nothing in them asks the host.

A step has so many seats and so many rows. Which slot of the cache sits in a seat, and how many of its drafts
are verified at most, the host says; what the slot's anchor and draft are, and where it stands, is a state on
the device that every step moves on. Rows are packed: a seat has as many as it verifies, and only what is left
of the step's rows is padding. A row's bits hang on its own tokens and position alone, whatever the shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.slot_rows import SlotRows
from reference_mechanisms.engine.static_step import Report
from reference_mechanisms.kernels.slots.choice import SlotKernels
from reference_mechanisms.kernels.slots.packing import Packed
from reference_mechanisms.kernels.slots.settling import settle, turns_of
from reference_mechanisms.targets.llama import LlamaTarget

EMPTY = -1  # drafts of a seat without a request


class Shape(NamedTuple):
    """Of a step."""

    seats: int  # requests, at most
    rows: int  # of all of them together, at most


class Sitting(NamedTuple):
    """A request's part in a step."""

    slot: int
    drafts: int  # that are verified, at most


class SlotBuffers:
    """What the steps of all shapes share; one runs at a time."""

    def __init__(
        self, target: LlamaTarget, cache: KVCache, *, most: int, rows: int, taps: Sequence[int]
    ) -> None:
        """Allocate.

        Args:
            target: the model.
            cache: its last slot is scratch.
            most: rows of a request: the anchor and its longest draft.
            rows: of the largest step.
            taps: layers whose output is wanted.
        """
        config, device, slots = target.config, target.device, cache.slots - 1
        self.target, self.cache, self.most, self.taps = target, cache, most, tuple(taps)
        self.scratch = slots

        def numbers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.state = numbers(slots + 1, most + 3)  # tokens, position of the anchor, drafted, limit
        self.sittings = numbers(2, slots)  # slot and most drafts of each seat
        self.sittings[0].fill_(slots)
        self.sittings[1].fill_(EMPTY)
        # Of the newest step, seats or rows in their order.
        # Behind the seats a row for each slot, and for scratch: the first token, and whether it is one.
        self.report = numbers(2 * slots + 1, 3 * most + 2)
        self.accepted = numbers(slots)
        self.choices, self.finite = numbers(rows), numbers(rows)
        self.logits = torch.zeros((rows, config.vocab_size), dtype=target.dtype, device=device)
        self.tapped = torch.zeros((rows, len(taps) * config.hidden_size), dtype=target.dtype, device=device)

    @torch.inference_mode()
    def load(self, slots: Sequence[int], states: Sequence[Sequence[int]]) -> None:
        """Set the states of some slots: tokens, position of the anchor, drafted, limit."""
        if slots:
            device = self.state.device
            where, told = (on_device(one, device) for one in (slots, states))
            self.state.index_copy_(0, where, told)

    def state_of(self, token_ids: Sequence[int], start: int, drafted: int, limit: int) -> list[int]:
        """A state to load; arguments as of `static_step.VerifyStep.load`."""
        return [*token_ids, *[0] * (self.most - len(token_ids)), start, drafted, limit]

    @torch.inference_mode()
    def sit(self, sittings: Sequence[Sitting], seats: int) -> None:
        """Say who takes part in the next step; the seats behind them are empty."""
        empty = seats - len(sittings)
        slots = [*(one.slot for one in sittings), *[self.scratch] * empty]
        drafts = [*(one.drafts for one in sittings), *[EMPTY] * empty]
        send(self.sittings[:, :seats], [slots, drafts])

    def read(self, numbers: Sequence[int]) -> Report:
        """The host's view of one row of `report`."""
        most = self.most
        ids, choices, finite = (list(numbers[2 + n * most : 2 + (n + 1) * most]) for n in range(3))
        return Report(numbers[0], numbers[1], ids, choices, finite)


def send(buffer: Tensor, numbers: Sequence[int] | Sequence[Sequence[int]]) -> None:
    """Fill a buffer from the host, in the order of the device's work and without waiting for it."""
    buffer.copy_(_staged(numbers, buffer.device), non_blocking=True)


def on_device(numbers: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Numbers of the host on a device, likewise."""
    return _staged(numbers, device).to(device, non_blocking=True)


def _staged(numbers: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    made = torch.tensor(numbers)
    return made.pin_memory() if device.type == "cuda" else made


class SlotStep:
    """A step of one shape; calling it runs it, and moves the states on by what was accepted."""

    def __init__(self, buffers: SlotBuffers, shape: Shape, *, drafts: int, kernels: SlotKernels) -> None:
        """Allocate the constants.

        Args:
            buffers: that all steps share.
            shape: of this one.
            drafts: most draft tokens of the step behind it, below `buffers.most`.
            kernels: of the step.
        """
        self._buffers, self._shape, self._drafts, self._kernels = buffers, shape, drafts, kernels
        self._forward = SlotRows(
            buffers.target,
            buffers.cache,
            rows=shape.rows,
            most=buffers.most,
            taps=buffers.taps,
            kernels=kernels,
        )

    @torch.inference_mode()
    def __call__(self) -> Packed:
        """Run all rows, accept greedily, move on; where the rows stood."""
        buffers, (seats, rows) = self._buffers, self._shape
        slots, most = buffers.sittings[0, :seats], buffers.sittings[1, :seats]
        turns = turns_of(buffers.state[slots])
        turns = turns._replace(drafted=torch.minimum(turns.drafted, most).clamp_min(0))
        packed = self._forward.pack(slots, turns.start, torch.where(most >= 0, turns.drafted + 1, 0))
        ids = turns.ids[packed.seats.clamp(max=seats - 1), packed.inside]
        forward = self._forward(ids, packed)
        logits = buffers.target.logits(forward.hidden)
        choices = self._kernels.best(logits)
        finite = logits.gather(-1, choices[:, None]).isfinite().squeeze(-1).to(torch.int64)
        settled = settle(turns, packed, choices, finite, self._drafts)
        buffers.logits[:rows].copy_(logits)
        if forward.taps:
            buffers.tapped[:rows].copy_(torch.cat(forward.taps, dim=-1))
        buffers.choices[:rows].copy_(choices)
        buffers.finite[:rows].copy_(finite)
        buffers.report[:seats].copy_(settled.report)
        buffers.accepted[:seats].copy_(settled.accepted)
        buffers.state.index_copy_(0, slots, settled.state)
        return packed
