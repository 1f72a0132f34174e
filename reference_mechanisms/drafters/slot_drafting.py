"""A drafter with weights for a batch, its forwards recorded: one launch takes in, one drafts for everyone.

It drafts what `trained.py` drafts, up to rounding, and the loop that asks it sees no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.binding import Bound
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.fusing import fusable, network_weights
from reference_mechanisms.drafters.protocol import Proposal, Wanted
from reference_mechanisms.drafters.scheduling import confidences_of
from reference_mechanisms.drafters.slot_fused import FusedSlotBlocks
from reference_mechanisms.drafters.slot_programs import (
    Seats,
    SlotBlockProgram,
    SlotChainProgram,
    SlotDraftProgram,
)
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.graphs import Graphs, Program
from reference_mechanisms.kernels.slots.packing import pack
from reference_mechanisms.request import Request


class SlotSizes(NamedTuple):
    """Of a batch."""

    slots: int
    positions: int  # of a request, at most
    width: int  # of the tapped states of a position


def slot_program(bound: Bound, drafts: int, slots: int, positions: int) -> SlotDraftProgram:
    """The program of a loaded drafter; fused where the kernels for it run."""
    network, (embed, head) = bound.network, bound.ends
    embed = embed if network.embed_tokens is None else network.embed_tokens
    head = head if network.lm_head is None else network.lm_head
    if isinstance(network, Eagle3):
        return SlotChainProgram(network, embed, head, drafts, slots, positions)
    if fusable(network):
        return FusedSlotBlocks(network_weights(network), embed, head, drafts, slots, positions)
    return SlotBlockProgram(network, embed, head, drafts, slots, positions)


class _Absorbing(NamedTuple):
    """Buffers of rows that are taken in."""

    taps: Tensor  # [rows, width]
    following: Tensor  # [rows]
    seats: Tensor  # [3, slots]: slot, first position, rows; of no rows: scratch


class SlotPrograms:
    """A program recorded in its shapes; one batch at a time."""

    def __init__(self, program: SlotDraftProgram, sizes: SlotSizes, like: Tensor, graphs: Graphs) -> None:
        """Allocate; a shape is recorded when it is first used.

        Args:
            program: the drafter, for `sizes`.
            sizes: of the batch.
            like: a tensor of the type and device of tapped states.
            graphs: record the shapes.
        """
        self.program, self.sizes, self._graphs = program, sizes, graphs
        self._recorded: dict[tuple[str, int, int], Program] = {}
        slots, device = sizes.slots, like.device
        rows = slots * (1 + program.drafts)
        self.rows = rows  # taken in at once, at most

        def numbers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        taps = torch.zeros((rows, sizes.width), dtype=like.dtype, device=device)
        self._in = _Absorbing(taps, numbers(rows), numbers(3, slots))
        self._seats = Seats(numbers(slots), numbers(slots), numbers(slots))
        self._drafted, self._confidences = numbers(slots, program.drafts), torch.empty(0)
        self._capacity = sizes.positions
        self.device = device

    @torch.inference_mode()
    def absorb(self, taps: Tensor, following: Sequence[int], places: Sequence[tuple[int, int, int]]) -> None:
        """Take in rows.

        Args:
            taps: [rows, width], at most `rows` of them.
            following: token behind each.
            places: slot, first position and rows of each request, in the order of the rows.
        """
        count, seats = len(taps), len(places)
        rows = next(one for one in self._ladder(self.rows) if one >= count)
        empty = [(self.sizes.slots, 0, 0)] * (self.sizes.slots - seats)
        buffers = self._in
        buffers.taps[:count].copy_(taps)
        padded = [*following, *[0] * (rows - count)]
        buffers.following[:rows].copy_(torch.tensor(padded))
        buffers.seats.copy_(torch.tensor([*places, *empty]).T)
        self._program("absorb", self.sizes.slots, rows)()

    @torch.inference_mode()
    def draft(self, places: Sequence[tuple[int, int, int]], drafts: int) -> tuple[Tensor, Tensor | None]:
        """Draft for some requests.

        Args:
            places: slot, anchor and its position of each.
            drafts: tokens of each.

        Returns:
            Tokens [requests, drafts or more], and the logits of their confidences if there are any; until
            the next draft.
        """
        count = len(places)
        seats = next(one for one in self._ladder(self.sizes.slots) if one >= count)
        length = next(one for one in self._ladder(self.program.drafts) if one >= drafts)
        empty = [(self.sizes.slots, 0, 0)] * (seats - count)
        made = torch.tensor([*places, *empty]).T
        for buffer, told in zip(self._seats, made, strict=True):
            buffer[:seats].copy_(told)
        self._program("draft", seats, length)()
        confident = self._confidences[:count, :length] if self._confidences.numel() else None
        return self._drafted[:count, :length], confident

    def _program(self, kind: str, seats: int, size: int) -> Program:
        key = (kind, seats, size)
        if key not in self._recorded:
            work = self._absorbing(size) if kind == "absorb" else self._drafting(seats, size)
            self._recorded[key] = self._graphs.program(work)
        return self._recorded[key]

    def _absorbing(self, rows: int) -> Program:
        index = torch.arange(rows, device=self.device)

        @torch.inference_mode()
        def run() -> None:
            slots, starts, counts = self._in.seats
            packed = pack(slots, starts, counts, index, self.sizes.slots, self._capacity)
            last = (packed.first + counts - 1).clamp(0, rows - 1)
            self.program.absorb(self._in.taps[:rows], packed, self._in.following[:rows], last)

        return run

    def _drafting(self, seats: int, drafts: int) -> Program:
        @torch.inference_mode()
        def run() -> None:
            found = self.program.draft(Seats(*(one[:seats] for one in self._seats)), drafts)
            self._drafted[:seats, :drafts].copy_(found.token_ids)
            if found.confidence_logits is not None:
                self._confidences[:seats, :drafts].copy_(found.confidence_logits)

        self._prepare_confidences()
        return run

    def _prepare_confidences(self) -> None:
        """A buffer for confidences, if the drafter has them."""
        if self._confidences.numel():
            return
        with torch.inference_mode():
            found = self.program.draft(Seats(*(one[:1] for one in self._seats)), 1).confidence_logits
            if found is not None:
                self._confidences = found.new_zeros(self._drafted.shape)

    @staticmethod
    def _ladder(most: int) -> list[int]:
        """Sizes that are recorded: powers of two, and the most."""
        return sorted({most, *(1 << power for power in range(most.bit_length()) if 1 << power < most)})


class SlotDrafter:
    """`protocol.ContextDrafter` over recorded programs."""

    def __init__(self, programs: SlotPrograms, taps: tuple[int, ...], drafting: Drafting) -> None:
        """Draft for one batch; what the programs held of another is over.

        Args:
            programs: of the drafter.
            taps: layers that it reads.
            drafting: chains of the best tokens, see `records`.
        """
        self.taps = taps
        self._programs, self._drafting = programs, drafting
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._known: dict[int, int] = {}  # positions taken in
        self._pending: dict[int, list[Tensor]] = {}

    @property
    def program(self) -> SlotDraftProgram | None:
        """What drafts greedily without the host; None where the host shares out what was drafted."""
        return None if self._drafting.lengths is not None else self._programs.program

    def begin(self, slot: int, request: Request) -> None:
        """As in `protocol.Drafter`."""
        self._prompts[slot], self._known[slot], self._pending[slot] = request.prompt, 0, []

    def extend(self, slot: int, taps: Tensor) -> None:
        """As in `protocol.ContextDrafter`."""
        self._pending[slot].append(taps)

    @torch.inference_mode()
    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """As in `protocol.Drafter`."""
        self._absorb(wanted)
        for one in wanted:
            behind = len(self._prompts[one.slot]) + len(one.token_ids) - 1
            if self._known[one.slot] != behind:
                known = self._known[one.slot]
                raise ValueError(f"slot {one.slot}: context of {known} positions, the anchor is at {behind}")
        asked = [one for one in wanted if one.limit > 0]
        if not asked:
            return [Proposal(()) for _ in wanted]
        most = [min(self._drafting.drafts, one.limit) for one in asked]
        places = [(one.slot, one.token_ids[-1], self._known[one.slot]) for one in asked]
        made, confidence_logits = self._programs.draft(places, max(most))
        lengths = most
        if self._drafting.lengths is not None and confidence_logits is not None:
            temperatures = self._drafting.temperatures[: confidence_logits.shape[1]]
            told = confidences_of(confidence_logits, temperatures).tolist()
            cut = [one[:length] for one, length in zip(told, most, strict=True)]
            lengths = self._drafting.lengths(cut)
        found = {
            one.slot: Proposal(tuple(ids[:length]))
            for one, ids, length in zip(asked, made.tolist(), lengths, strict=True)
        }
        return [found.get(one.slot, Proposal(())) for one in wanted]

    def _absorb(self, wanted: Sequence[Wanted]) -> None:
        """Take in what waits, as many rows at a time as there is room for."""
        taps: list[Tensor] = []
        following: list[int] = []
        places: list[tuple[int, int, int]] = []
        for one in wanted:
            waiting = self._pending[one.slot]
            if not waiting:
                continue
            rows = torch.cat(waiting) if len(waiting) > 1 else waiting[0]
            waiting.clear()
            text, first = (*self._prompts[one.slot], *one.token_ids), 0
            while first < len(rows):
                room = self._programs.rows - len(following)
                part = rows[first : first + room]
                start = self._known[one.slot]
                taps.append(part)
                following += text[start + 1 : start + 1 + len(part)]
                places.append((one.slot, start, len(part)))
                self._known[one.slot] += len(part)
                first += len(part)
                if len(following) == self._programs.rows:
                    self._programs.absorb(torch.cat(taps), following, places)
                    taps, following, places = [], [], []
        if places:
            self._programs.absorb(torch.cat(taps), following, places)


def records(drafting: Drafting) -> bool:
    """Whether drafts of this kind come from recorded programs: chains of the best tokens."""
    return drafting.tree is None and not drafting.sampled
