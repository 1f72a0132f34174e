"""The programs of a batch that drives itself: verify, accept, take in, draft; the host only reads.

As `lane.py` for one request. The state of every slot lies on the device, so the host may start a step before
it has read the one in front: it says who takes part and how many drafts count at most, and learns what was
emitted from the step's report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from reference_mechanisms.drafters.slot_programs import Seats, SlotDraftProgram
from reference_mechanisms.engine.graphs import Graphs, Program
from reference_mechanisms.engine.mail import Mail
from reference_mechanisms.engine.prompt_step import PIECE
from reference_mechanisms.engine.slot_prompt import SlotPrompt
from reference_mechanisms.engine.slot_rows import Slots
from reference_mechanisms.engine.slot_step import Shape, Sitting, SlotBuffers, SlotStep
from reference_mechanisms.engine.staging import send
from reference_mechanisms.engine.static_step import Report


class LaneSizes(NamedTuple):
    """Of steps."""

    shapes: Sequence[Shape]  # by rows, then by seats
    most: int  # rows of a request


class SlotLane:
    """Recorded programs of one batch at a time."""

    def __init__(
        self,
        model: Slots,
        *,
        sizes: LaneSizes,
        taps: Sequence[int],
        program: SlotDraftProgram | None,
        graphs: Graphs,
    ) -> None:
        """Record the steps; drafts are recorded in the sizes that are asked for.

        Args:
            model: the target, and its slots.
            sizes: of the steps.
            taps: layers that the drafter reads.
            program: the drafter; None: nothing is drafted.
            graphs: record everything; all programs run one behind the other.
        """
        self._graphs, self._program, self._most = graphs, program, sizes.most
        self.cache, self.taps, self.shapes = model.cache, tuple(taps), tuple(sizes.shapes)
        self.slots = model.cache.slots - 1
        shapes, most = sizes
        self.buffers = SlotBuffers(model, most=most, rows=max(one.rows for one in shapes), taps=taps)
        self._model, target = model, model.target
        device = target.device
        # Of prompts: token behind each row of a piece, and the state of the slot without its anchor.
        self._following = torch.zeros(PIECE, dtype=torch.int64, device=device)
        self._begun = torch.zeros(most + 3, dtype=torch.int64, device=device)
        self.first_logits = torch.zeros((1, target.config.vocab_size), dtype=target.dtype, device=device)
        self._prompt = SlotPrompt(model, taps, graphs)
        self._finish = graphs.program(self._finishing)
        self._absorb = None if program is None else graphs.program(self._absorbing)
        self._steps = {
            shape: graphs.program(self._stepping(shape))
            for shape in sorted(shapes, key=lambda one: (-one.rows, -one.seats))
        }
        self._drafts: dict[tuple[int, int], Program] = {}
        self._mail = Mail(self.buffers.report)

    @property
    def drafts(self) -> int:
        """Most draft tokens of a request."""
        return 0 if self._program is None else min(self._program.drafts, self._most - 1)

    @property
    def waiting(self) -> int:
        """Reports sent and not read."""
        return self._mail.waiting

    def clear(self) -> None:
        """Forget what is under way."""
        self._mail.clear()

    def prompt(self, ids: Sequence[int], slot: int, start: int, following: Sequence[int]) -> None:
        """Write a piece of a prompt that goes on.

        Args:
            ids: up to `PIECE` tokens.
            slot: of the cache.
            start: position of the first.
            following: token behind each.
        """
        self._model.settle()
        self._prompt(ids, slot, start)
        if self._absorb is not None:
            send(self._following, [*following, *[0] * (PIECE - len(ids))])
            self._absorb()

    def finish(self, ids: Sequence[int], slot: int, start: int, following: Sequence[int], limit: int) -> None:
        """Write the last piece of a prompt; its choice becomes the slot's anchor.

        Args:
            ids: up to `PIECE` tokens.
            slot: of the cache.
            start: position of the first.
            following: token behind each but the last.
            limit: most draft tokens that can be used behind the first token.
        """
        self._model.settle()
        self._prompt(ids, slot, start)
        send(self._following, [*following, *[0] * (PIECE - len(following))])
        send(self._begun, self.buffers.state_of((), start + len(ids), 0, limit))
        self._finish()

    def step(self, sittings: Sequence[Sitting], shape: Shape, drafts: int) -> None:
        """Draft for some requests, verify, accept.

        Args:
            sittings: who takes part.
            shape: that holds them.
            drafts: of each, at most.
        """
        self._model.settle()
        self.buffers.sit(sittings, shape.seats)
        if drafts and self._program is not None:
            self._draft(shape.seats, min(drafts, self.drafts))()
        self._steps[shape]()

    def ran(self, slot: int, first: int) -> None:
        """The newest step ran a slot that sat there hosted, from this row on; the host will commit some."""
        self._model.ran(slot, first)

    def load(self, slot: int, anchor: int, start: int, limit: int) -> None:
        """Set a slot's state, where the host has decided."""
        self.buffers.load([slot], [self.buffers.state_of((anchor,), start, 0, limit)])

    def post(self) -> None:
        """Send what the newest step and the newest prompts report."""
        self._mail.send()

    def receive(self) -> Sequence[Sequence[int]]:
        """The oldest report: a row for each seat, then of each slot the first token, and if it is one."""
        found: Sequence[Sequence[int]] = self._mail.receive()  # type: ignore[assignment]
        return found

    def read(self, row: Sequence[int]) -> Report:
        """The host's view of a seat's row."""
        return self.buffers.read(row)

    def _stepping(self, shape: Shape) -> Program:
        step = SlotStep(self.buffers, shape, drafts=0)
        buffers, (seats, rows) = self.buffers, shape

        @torch.inference_mode()
        def run() -> None:
            packed = step()
            if self._program is not None:
                last = (packed.first + buffers.accepted[:seats]).clamp(max=rows - 1)
                self._program.absorb(buffers.tapped[:rows], packed, buffers.choices[:rows], last)

        return run

    def _draft(self, seats: int, drafts: int) -> Program:
        length = next(one for one in _ladder(self.drafts) if one >= drafts)
        if (seats, length) not in self._drafts:
            self._drafts[seats, length] = self._graphs.program(self._drafting(seats, length))
        return self._drafts[seats, length]

    def _drafting(self, seats: int, drafts: int) -> Program:
        buffers, most, program = self.buffers, self._most, self._program

        @torch.inference_mode()
        def run() -> None:
            if program is None:
                return
            slots = buffers.sittings[0, :seats]
            state = buffers.state[slots]
            made = program.draft(Seats(slots, state[:, 0], state[:, most]), drafts).token_ids
            state[:, 1 : 1 + drafts] = made
            state[:, most + 1] = state[:, most + 2].clamp(0, drafts)
            buffers.state.index_copy_(0, slots, state)

        return run

    @torch.inference_mode()
    def _absorbing(self) -> None:
        if self._program is not None:
            packed = self._prompt.packed
            last = packed.counts - 1
            self._program.absorb(self._prompt.tapped, packed, self._following, last.clamp_min(0))

    @torch.inference_mode()
    def _finishing(self) -> None:
        """Choose the first token from the prompt's last row, take the piece in, set the slot's state."""
        buffers, packed = self.buffers, self._prompt.packed
        last = (packed.counts - 1).clamp_min(0)
        logits = self._model.target.logits(self._prompt.hidden[last])
        choice = self._model.kernels.best(logits)
        self.first_logits.copy_(logits)
        finite = logits.gather(-1, choice[:, None]).isfinite().squeeze(-1).to(torch.int64)
        self._following.index_copy_(0, last, choice)
        self._absorbing()
        state = torch.cat((choice, self._begun[1:]))
        buffers.state.index_copy_(0, packed.slots, state[None])
        told = torch.zeros_like(buffers.report[:1])
        told[0, 0], told[0, 1] = choice[0], finite[0]
        buffers.report.index_copy_(0, packed.slots + self.slots, told)


def _ladder(most: int) -> list[int]:
    """Sizes that are recorded: powers of two, and the most."""
    return sorted({most, *(1 << power for power in range(most.bit_length()) if 1 << power < most)})
