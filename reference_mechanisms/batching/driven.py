"""Continuous batching where the device drives: a step is started before the one in front of it is read.

The plan is the scheduler's, as in `batcher.py`, from what the host has heard so far. Drafting, verifying,
accepting and the state of the next step are the device's (`engine.slot_lane`); the host reads what was
emitted, ends requests, and lets others in. A request whose tokens the host must decide on (temperature,
penalties, hashed logits) is served too: while there is one, every step is read before the next.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.batching.bucket_running import smallest
from reference_mechanisms.batching.costs import StepCosts
from reference_mechanisms.batching.expecting import Acceptance
from reference_mechanisms.batching.protocol import Outcome
from reference_mechanisms.batching.scheduler import Plan, Running, State, allot, plan
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters.protocol import Proposal
from reference_mechanisms.engine.choices import NO_NUMBERS
from reference_mechanisms.engine.prompt_step import PIECE
from reference_mechanisms.engine.slot_lane import SlotLane
from reference_mechanisms.engine.slot_step import Sitting
from reference_mechanisms.engine.turns import Live, Turns
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Request


@dataclass(slots=True, kw_only=True, eq=False)
class _Seat:
    """A request in a slot."""

    live: Live
    acceptance: Acceptance
    cached: int = 0  # prompt rows
    under_way: int = 0  # steps that were started and not read

    @property
    def hosted(self) -> bool:
        """Whether the host decides on its tokens."""
        sampling = self.live.request.sampling
        return not sampling.greedy or sampling.adjusts or self.live.hasher is not None


class _Sent(NamedTuple):
    """What a report will tell of."""

    seated: tuple[_Seat, ...]  # in the order of the seats
    begun: tuple[_Seat, ...]  # whose first token is among it


class DrivenBatcher:
    """See `protocol.BatchEngine`."""

    def __init__(
        self,
        lane: SlotLane,
        turns: Turns,
        settings: BatchSettings,
        costs: StepCosts | None = None,
        close: Callable[[], None] = lambda: None,
        ahead: int | None = None,
        joined: Callable[[int, Request], None] = lambda slot, request: None,  # noqa: ARG005
    ) -> None:
        """Start empty; a batch before on the same lane is over.

        Args:
            lane: of `settings.slots` slots or more.
            turns: opens requests and takes their turns.
            settings: ragged, without cohorts and trees.
            costs: the measured table, for those that need it.
            close: lets go of what target and drafter came from.
            ahead: steps started before one is read, at most 1; None: 1 on CUDA, else 0.
            joined: told of a request and its slot before anything of it is run.
        """
        self._lane, self._turns, self._settings = lane, turns, settings
        self._costs, self._close, self._joined = costs, close, joined
        cuda = lane.buffers.state.is_cuda
        self._most_ahead = int(cuda) if ahead is None else ahead
        self._everyone = Acceptance()
        self._waiting: OrderedDict[str, Request] = OrderedDict()
        self._seats: dict[int, _Seat] = {}  # by slot, in the order of arrival
        self._sent: deque[_Sent] = deque()
        self._drafts_before: int | None = None
        self._steps = 0
        self.planned: Plan | None = None  # of the newest step
        lane.clear()

    @property
    def busy(self) -> bool:
        """See `BatchEngine`."""
        return bool(self._waiting or self._seats)

    def submit(self, request: Request) -> str:
        """See `BatchEngine`."""
        self._turns.check(request)
        open_names = {seat.live.request.name for seat in self._seats.values()}
        if request.name in self._waiting or request.name in open_names:
            raise RequestError(f"{request.name}: a request of this name has not ended; give another name")
        self._waiting[request.name] = request
        return request.name

    def cancel(self, name: str) -> None:
        """See `BatchEngine`."""
        self._waiting.pop(name, None)
        for slot, seat in list(self._seats.items()):
            if seat.live.request.name == name:
                del self._seats[slot]

    def close(self) -> None:
        """See `BatchEngine`."""
        self._waiting.clear()
        self._seats.clear()
        self._sent.clear()
        self._lane.clear()
        self._close()

    @torch.inference_mode()
    def step(self) -> Sequence[Outcome]:
        """See `BatchEngine`."""
        now = plan(self._state(), self._settings, self._costs, self._lane.drafts)
        self.planned = now
        for slot in now.joins:
            _, request = self._waiting.popitem(last=False)
            live = self._turns.open(slot, request)
            self._seats[slot] = _Seat(live=live, acceptance=Acceptance(self._everyone))
            self._lane.cache.clear(slot)
            self._joined(slot, request)
        running = [self._seats[slot] for slot in now.cohorts.verified]
        outcomes: list[Outcome] = []
        begun = []
        for slot, rows in now.prefill:
            seat = self._seats[slot]
            if self._prefill(seat, rows):
                begun.append(seat)
                if seat.hosted:  # its first token is decided on before anything else writes there
                    outcomes += self._read_until(0)
                    self._post((), (seat,))
                    outcomes += self._read_until(0)
                    begun.pop()
        running = [seat for seat in running if self._holds(seat)]
        if running:
            self._start(running, now)
        if running or begun:
            self._post(running, begun)
        hosted = any(seat.hosted for seat in self._seats.values())
        ahead = self._most_ahead if (running or begun) and not hosted else 0
        return [*outcomes, *self._read_until(ahead)]

    def _state(self) -> State:
        running, filling = [], []
        for slot, seat in self._seats.items():
            left = len(seat.live.request.prompt) - seat.cached
            if left:
                filling.append((slot, left))
            elif self._limit(seat) >= 0:  # else a step under way ends it
                expected = seat.acceptance.survivals(self._lane.drafts)
                running.append(Running(slot, self._limit(seat), expected))
        free = tuple(slot for slot in range(self._settings.slots) if slot not in self._seats)
        waiting = tuple(len(request.prompt) for request in self._waiting.values())
        return State(tuple(sorted(running)), tuple(filling), waiting, free, self._drafts_before, self._steps)

    def _limit(self, seat: _Seat) -> int:
        """Most drafts that the next step can use: each step under way emits a token or more."""
        return self._turns.limit(seat.live) - seat.under_way

    def _holds(self, seat: _Seat) -> bool:
        return self._seats.get(seat.live.slot) is seat

    def _prefill(self, seat: _Seat, count: int) -> bool:
        """Cache rows of a prompt; whether they are the last, so that its first token is under way."""
        prompt, slot, last = seat.live.request.prompt, seat.live.slot, seat.cached + count
        while seat.cached < last:
            start, end = seat.cached, min(last, seat.cached + PIECE)
            ids, following = prompt[start:end], prompt[start + 1 : end + 1]
            if end < len(prompt):
                self._lane.prompt(ids, slot, start, following)
            else:
                limit = self._turns.limit(seat.live) - 1  # behind the first token
                self._lane.finish(ids, slot, start, following, limit)
            self._lane.cache.commit(slot, len(ids))
            seat.cached = end
        return seat.cached == len(prompt)

    def _start(self, running: Sequence[_Seat], now: Plan) -> None:
        """Start the step: who takes part with how many drafts, in the smallest shape that holds it."""
        caps = [max(0, min(now.drafts, self._limit(seat))) for seat in running]
        if now.budget is not None:
            expected = (seat.acceptance.survivals(self._lane.drafts) for seat in running)
            worths = [one[:cap] for one, cap in zip(expected, caps, strict=True)]
            caps = list(allot(worths, now.budget))
        shape = smallest(self._lane.shapes, len(running), len(running) + sum(caps))
        sittings = [
            Sitting(seat.live.slot, cap, seat.hosted) for seat, cap in zip(running, caps, strict=True)
        ]
        self._lane.step(sittings, shape, max(caps))
        self._drafts_before, self._steps = now.drafts, self._steps + 1

    def _post(self, seated: Sequence[_Seat], begun: Sequence[_Seat]) -> None:
        self._lane.post()
        self._sent.append(_Sent(tuple(seated), tuple(begun)))
        for seat in (*seated, *begun):
            seat.under_way += 1

    def _read_until(self, ahead: int) -> list[Outcome]:
        """Read reports until no more than so many are under way."""
        outcomes: list[Outcome] = []
        while len(self._sent) > ahead:
            sent, told = self._sent.popleft(), self._lane.receive()
            for seat in (*sent.seated, *sent.begun):
                seat.under_way -= 1
            outcomes += self._verified(sent.seated, told)
            for seat in sent.begun:
                if self._holds(seat):
                    first, finite, *_ = told[self._lane.slots + seat.live.slot]
                    outcomes.append(self._begin(seat, first, finite > 0))
        return outcomes

    def _begin(self, seat: _Seat, first: int, finite: bool) -> Outcome:
        """The first token of a request."""
        if not finite:
            return self._refused(seat)
        logits = self._lane.first_logits if seat.hosted else torch.empty(0)
        event = self._turns.emit(seat.live, Proposal(()), logits, [first], None)
        return self._left_or_corrected(seat, (seat.live.request.name, event))

    def _verified(self, seated: Sequence[_Seat], told: Sequence[Sequence[int]]) -> list[Outcome]:
        """What the requests of a step emitted."""
        outcomes: list[Outcome] = []
        row, lane = 0, self._lane
        for seat, numbers in zip(seated, told, strict=False):
            report = lane.read(numbers)
            rows = slice(row, row + 1 + report.drafted)
            row = rows.stop
            if not self._holds(seat):
                continue
            live, count = seat.live, 1 + report.drafted
            before = lane.cache.length(live.slot)
            if report.start != before:
                raise ValueError(
                    f"slot {live.slot}: the device stands at position {report.start}, the host at {before}"
                )
            if not all(report.finite[:count]):
                outcomes.append(self._refused(seat))
                continue
            proposal = Proposal(tuple(report.token_ids[1:count]))
            logits: Tensor = lane.buffers.logits[rows] if seat.hosted else torch.empty(0)
            if seat.hosted:
                lane.ran(live.slot, rows.start)
            event = self._turns.emit(live, proposal, logits, report.choices[:count], lane.cache)
            seat.acceptance.saw(report.drafted, lane.cache.length(live.slot) - before - 1)
            outcomes.append(self._left_or_corrected(seat, (live.request.name, event)))
        return outcomes

    def _left_or_corrected(self, seat: _Seat, outcome: Outcome) -> Outcome:
        """A request that ended leaves; the device hears of what the host has decided."""
        live = seat.live
        if live.done:
            del self._seats[live.slot]
        elif seat.hosted:
            start = self._lane.cache.length(live.slot)
            self._lane.load(live.slot, live.emitted[-1], start, self._turns.limit(live))
        return outcome

    def _refused(self, seat: _Seat) -> Outcome:
        name = seat.live.request.name
        del self._seats[seat.live.slot]
        return name, RequestError(NO_NUMBERS)
