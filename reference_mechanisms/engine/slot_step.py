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

from reference_mechanisms.engine.slot_rows import Slots
from reference_mechanisms.engine.staging import on_device, send
from reference_mechanisms.engine.static_step import Report
from reference_mechanisms.engine.target import Forward
from reference_mechanisms.kernels.slots.packing import Packed
from reference_mechanisms.kernels.slots.settling import settle, turns_of
from reference_mechanisms.verification.tree import ANCHOR

EMPTY = -1  # drafts of a seat without a request


class Shape(NamedTuple):
    """Of a step."""

    seats: int  # requests, at most
    rows: int  # of all of them together, at most


class Sitting(NamedTuple):
    """A request's part in a step."""

    slot: int
    drafts: int  # that are verified, at most
    hosted: bool = False  # the host decides what is kept


class SlotBuffers:
    """What the steps of all shapes share; one runs at a time."""

    def __init__(self, model: Slots, *, most: int, rows: int, taps: Sequence[int]) -> None:
        """Allocate.

        Args:
            model: the target, and its slots.
            most: rows of a request: the anchor and its longest draft.
            rows: of the largest step.
            taps: layers whose output is wanted.
        """
        target, slots = model.target, model.cache.slots - 1
        config, device = target.config, target.device
        self.model, self.most, self.taps = model, most, tuple(taps)
        self.scratch = slots

        def numbers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.state = numbers(slots + 1, most + 3)  # tokens, position of the anchor, drafted, limit
        self.parents = numbers(slots + 1, most)  # row in front of each row, where steps verify trees
        self.sittings = numbers(3, slots)  # slot, most drafts, and whether it is hosted, of each seat
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
    def load(
        self,
        slots: Sequence[int],
        states: Sequence[Sequence[int]],
        parents: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Set the states of some slots.

        Args:
            slots: of the cache.
            states: of each: tokens, position of the anchor, drafted, limit.
            parents: of each: those of its rows; None: steps verify chains.
        """
        if not slots:
            return
        device = self.state.device
        where = on_device(slots, device)
        self.state.index_copy_(0, where, on_device(states, device))
        if parents is not None:
            padded = [[*one, *[ANCHOR] * (self.most - len(one))] for one in parents]
            self.parents.index_copy_(0, where, on_device(padded, device))

    def state_of(self, token_ids: Sequence[int], start: int, drafted: int, limit: int) -> list[int]:
        """A state to load; arguments as of `static_step.VerifyStep.load`."""
        return [*token_ids, *[0] * (self.most - len(token_ids)), start, drafted, limit]

    @torch.inference_mode()
    def sit(self, sittings: Sequence[Sitting], seats: int) -> None:
        """Say who takes part in the next step; the seats behind them are empty."""
        empty = seats - len(sittings)
        slots = [*(one.slot for one in sittings), *[self.scratch] * empty]
        drafts = [*(one.drafts for one in sittings), *[EMPTY] * empty]
        hosted = [*(int(one.hosted) for one in sittings), *[0] * empty]
        send(self.sittings[:, :seats], [slots, drafts, hosted])

    def take(self, forward: Forward) -> tuple[Tensor, Tensor]:
        """Keep what a step computed; the choice of each row, and whether its largest logit is a number."""
        rows = len(forward.hidden)
        logits = self.model.target.logits(forward.hidden)
        choices = self.model.kernels.best(logits)
        finite = logits.gather(-1, choices[:, None]).isfinite().squeeze(-1).to(torch.int64)
        self.logits[:rows].copy_(logits)
        if forward.taps:
            self.tapped[:rows].copy_(torch.cat(forward.taps, dim=-1))
        self.choices[:rows].copy_(choices)
        self.finite[:rows].copy_(finite)
        return choices, finite

    def read(self, numbers: Sequence[int]) -> Report:
        """The host's view of one row of `report`."""
        most = self.most
        ids, choices, finite = (list(numbers[2 + n * most : 2 + (n + 1) * most]) for n in range(3))
        return Report(numbers[0], numbers[1], ids, choices, finite)


class SlotStep:
    """A step of one shape; calling it runs it, and moves the states on by what was accepted."""

    def __init__(self, buffers: SlotBuffers, shape: Shape, *, drafts: int) -> None:
        """Allocate the constants.

        Args:
            buffers: that all steps share.
            shape: of this one.
            drafts: most draft tokens of the step behind it, below `buffers.most`.
        """
        self._buffers, self._shape, self._drafts = buffers, shape, drafts
        self._forward = buffers.model.rows(shape.rows, buffers.most, buffers.taps)

    @torch.inference_mode()
    def __call__(self) -> Packed:
        """Run all rows, accept greedily, move on; where the rows stood."""
        buffers, seats = self._buffers, self._shape.seats
        slots, most, hosted = buffers.sittings[:, :seats]
        turns = turns_of(buffers.state[slots])
        turns = turns._replace(drafted=torch.minimum(turns.drafted, most).clamp_min(0))
        packed = self._forward.pack(slots, turns.start, torch.where(most >= 0, turns.drafted + 1, 0))
        ids = turns.ids[packed.seats.clamp(max=seats - 1), packed.inside]
        forward = self._forward(ids, packed)
        choices, finite = buffers.take(forward)
        settled = settle(turns, packed, choices, finite, self._drafts)
        self._forward.keep(packed, torch.where((packed.counts > 0) & (hosted == 0), settled.accepted + 1, 0))
        buffers.report[:seats].copy_(settled.report)
        buffers.accepted[:seats].copy_(settled.accepted)
        buffers.state.index_copy_(0, slots, settled.state)
        return packed
