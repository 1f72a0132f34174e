"""`replay` acceptance in batches: a drafter drafts whole, then traces say what is accepted of it.

As `drafters.replaying` for single requests. A draft's tokens are the target's own continuation, known from a
run before, up to where the trace of the request says; behind that they are wrong. Confidences are the
trace's, so that what shares a budget by them has something to go by. Such a run is of the "system" division.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.batching.traces.format import Attempt, Trace
from reference_mechanisms.drafters.dflash import Drafted
from reference_mechanisms.drafters.protocol import ContextDrafter, Proposal, Wanted
from reference_mechanisms.drafters.scheduling import Lengths
from reference_mechanisms.drafters.slot_programs import Seats, SlotDraftProgram
from reference_mechanisms.engine.staging import send
from reference_mechanisms.errors import RequestError
from reference_mechanisms.kernels.slots.packing import Packed
from reference_mechanisms.request import Request


class Known(NamedTuple):
    """What is known of a request before it is timed."""

    continuation: tuple[int, ...]  # the target's own
    trace: Trace


class Recalling:
    """A drafter beside which what is known of each request is found by its prompt."""

    def __init__(self, inner: ContextDrafter, known: Mapping[tuple[int, ...], Known]) -> None:
        """Keep both.

        Args:
            inner: drafts whole, for nothing.
            known: by prompt.
        """
        self.taps = inner.taps
        self._inner, self._known = inner, known
        self._of_slot: dict[int, Known] = {}

    def begin(self, slot: int, request: Request) -> None:
        """As in `protocol.Drafter`.

        Raises:
            RequestError: nothing is known of the request.
        """
        found = self._known.get(request.prompt)
        if found is None:
            raise RequestError(f"{request.name}: its continuation is not known; decode it first")
        self._of_slot[slot] = found
        self._inner.begin(slot, request)

    def extend(self, slot: int, taps: Tensor) -> None:
        """As in `protocol.ContextDrafter`."""
        self._inner.extend(slot, taps)

    def _attempt(self, one: Wanted) -> Attempt:
        return self._of_slot[one.slot].trace.attempts[len(one.token_ids) - 1]

    def _continuation(self, one: Wanted, count: int) -> tuple[int, ...]:
        """The target's next tokens."""
        emitted = len(one.token_ids)
        return self._of_slot[one.slot].continuation[emitted : emitted + count]


class ReplayedBatch(Recalling):
    """`protocol.ContextDrafter` whose drafts are replaced."""

    def __init__(
        self,
        inner: ContextDrafter,
        known: Mapping[tuple[int, ...], Known],
        vocab_size: int,
        drafts: int,
        lengths: Lengths | None = None,
    ) -> None:
        """Replay.

        Args:
            inner: drafts whole, for nothing.
            known: by prompt.
            vocab_size: of the target.
            drafts: tokens of a draft, at most.
            lengths: how many of each draft to verify, from the confidences; None: all.
        """
        super().__init__(inner, known)
        self._vocab_size, self._drafts, self._lengths = vocab_size, drafts, lengths

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """As in `protocol.Drafter`."""
        self._inner.propose(wanted)
        asked = [one for one in wanted if one.limit > 0]
        counts = [min(self._drafts, one.limit) for one in asked]
        if self._lengths is not None:
            told = [self._attempt(one).confidences[:count] for one, count in zip(asked, counts, strict=True)]
            counts = self._lengths(told)
        found = {
            one.slot: Proposal(self._draft(one, count)) for one, count in zip(asked, counts, strict=True)
        }
        return [found.get(one.slot, Proposal(())) for one in wanted]

    def _draft(self, one: Wanted, count: int) -> tuple[int, ...]:
        right = self._continuation(one, count)
        accepted = min(self._attempt(one).accepted, len(right))
        wrong = (
            (right[place] + 1) % self._vocab_size if place < len(right) else 0
            for place in range(accepted, count)
        )
        return (*right[:accepted], *wrong)


class ReplayedSlots:
    """`slot_programs.SlotDraftProgram` whose drafts are replaced on the device, without a question to it."""

    def __init__(
        self, inner: SlotDraftProgram, slots: int, positions: int, vocab_size: int, device: torch.device
    ) -> None:
        """Replay.

        Args:
            inner: drafts whole, for nothing.
            slots: requests at a time.
            positions: of a request, at most.
            vocab_size: of the target.
            device: of the drafts.
        """
        self.drafts = inner.drafts
        self._inner, self._vocab_size, self._positions = inner, vocab_size, positions

        def numbers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        # By slot and position, and one more slot that no request has: prompt and continuation, and how many
        # drafts are right behind an anchor that stands there.
        self._tokens, self._accepted = (numbers(slots + 1, positions + inner.drafts + 1) for _ in range(2))
        self._index = torch.arange(inner.drafts, device=device)

    def begin(self, slot: int, request: Request, known: Known) -> None:
        """A request takes a slot."""
        behind = len(request.prompt)
        tokens = [*request.prompt, *known.continuation]
        accepted = [*[0] * behind, *(one.accepted for one in known.trace.attempts)]
        for place, told in ((self._tokens, tokens), (self._accepted, accepted)):
            row = told[: self._positions]
            send(place[slot], [*row, *[0] * (place.shape[1] - len(row))])

    def absorb(self, taps: Tensor, packed: Packed, following: Tensor, last: Tensor) -> None:
        """As in `SlotDraftProgram`."""
        self._inner.absorb(taps, packed, following, last)

    @torch.inference_mode()
    def draft(self, seats: Seats, drafts: int) -> Drafted:
        """As in `SlotDraftProgram`."""
        self._inner.draft(seats, drafts)
        index = self._index[:drafts]
        last = self._tokens.shape[1] - 1
        places = (seats.starts[:, None] + 1 + index).clamp(0, last)
        known = self._tokens[seats.slots].gather(1, places)
        accepted = self._accepted[seats.slots].gather(1, seats.starts[:, None].clamp(0, last))
        return Drafted(torch.where(index < accepted, known, (known + 1) % self._vocab_size))


class Silent:
    """`protocol.ContextDrafter` that drafts nothing: decoding without drafts in the same recorded steps."""

    def __init__(self, taps: tuple[int, ...]) -> None:
        """Tap these layers, and read nothing of them."""
        self.taps = taps

    def begin(self, slot: int, request: Request) -> None:
        """Nothing to keep."""

    def extend(self, slot: int, taps: Tensor) -> None:
        """Nothing to keep."""

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """No draft for anyone."""
        return [Proposal(()) for _ in wanted]
