"""The loop of continuous batching: requests join and leave between steps, each step does what was planned.

Nothing that is planned can change an output: a draft is kept only where it is what the target chose, and
random numbers hang on a request's own seed, prompt and position.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.batching.costs import StepCosts
from reference_mechanisms.batching.expecting import Acceptance
from reference_mechanisms.batching.overlapping import Beside
from reference_mechanisms.batching.protocol import Outcome
from reference_mechanisms.batching.ragged_acceptance.lockstep import held_back
from reference_mechanisms.batching.rationing import Ration
from reference_mechanisms.batching.running import Ran, Runner
from reference_mechanisms.batching.scheduler import Plan, Running, State, allot, plan
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters.protocol import ContextDrafter, Drafter, Proposal, Wanted
from reference_mechanisms.engine.choices import NO_NUMBERS
from reference_mechanisms.engine.decode import PREFILL_ROWS
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.turns import Live, Turns, hold_limits, pack
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Request
from reference_mechanisms.verification.chain import Verified

NOTHING = Proposal(())


class Drafts(NamedTuple):
    """Where drafts come from."""

    drafter: Drafter
    most: int  # draft tokens of a request, or nodes of its tree
    ration: Ration | None = None  # the drafter decides by what it drafted, through this one
    tree: bool = False


@dataclass(slots=True, kw_only=True)
class _Seat:
    """A request in a slot."""

    live: Live
    acceptance: Acceptance
    cached: int = 0  # prompt rows
    worths: tuple[float, ...] = field(default=())  # of its newest tree


class Batcher:
    """See `protocol.BatchEngine`."""

    def __init__(
        self,
        runner: Runner,
        turns: Turns,
        drafts: Drafts,
        settings: BatchSettings,
        costs: StepCosts | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Start empty.

        Args:
            runner: of steps, on a cache of `settings.slots` slots or more.
            turns: opens requests and takes their turns, by the same rules.
            drafts: the drafter, of this batcher alone.
            settings: which mechanisms are on.
            costs: the measured table, for those that need it.
            close: lets go of what target and drafter came from.
        """
        self._runner, self._turns, self._drafts = runner, turns, drafts
        self._settings, self._costs, self._close = settings, costs, close
        drafter = drafts.drafter
        self._reader = drafter if isinstance(drafter, ContextDrafter) else None
        self._taps = () if self._reader is None else self._reader.taps
        self._everyone = Acceptance()
        self._waiting: OrderedDict[str, Request] = OrderedDict()
        self._seats: dict[int, _Seat] = {}  # by slot, in the order of arrival
        self._held: dict[int, Proposal] = {}  # drafts of the other cohort, by slot
        self._beside = Beside(runner.device)
        self._drafts_before: int | None = None
        self._turn = 0
        self.planned: Plan | None = None  # of the newest step

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
                self._leave(slot)

    def close(self) -> None:
        """See `BatchEngine`."""
        self._waiting.clear()
        for slot in list(self._seats):
            self._leave(slot)
        self._close()

    @torch.inference_mode()
    def step(self) -> Sequence[Outcome]:
        """See `BatchEngine`."""
        now = plan(self._state(), self._settings, self._costs, self._drafts.most)
        self.planned = now
        for slot in now.joins:
            self._join(slot)
        outcomes: list[Outcome] = []
        for slot, rows in now.prefill:
            outcomes += self._prefill(slot, rows)
        if not now.cohorts.verified:
            return outcomes
        slots = now.cohorts.verified
        missing = [slot for slot in slots if slot not in self._held]
        self._held |= self._propose(missing, now)
        proposals = [self._held.pop(slot) for slot in slots]
        lives = [self._seats[slot].live for slot in slots]
        ran = self._runner.run(pack(lives, proposals, self._runner.cache), self._taps)
        if now.cohorts.drafted:  # the step above is under way on a device of its own
            absent = [slot for slot in now.cohorts.drafted if slot not in self._held]
            with self._beside:
                self._held |= self._propose(absent, now)
        outcomes += self._settle(slots, proposals, ran)
        self._drafts_before, self._turn = now.drafts, self._turn + 1
        return outcomes

    def _state(self) -> State:
        running, filling = [], []
        for slot, seat in self._seats.items():
            left = len(seat.live.request.prompt) - seat.cached
            if left:
                filling.append((slot, left))
            else:
                running.append(Running(slot, self._turns.limit(seat.live), self._expected(seat)))
        free = tuple(slot for slot in range(self._settings.slots) if slot not in self._seats)
        waiting = tuple(len(request.prompt) for request in self._waiting.values())
        return State(tuple(sorted(running)), tuple(filling), waiting, free, self._drafts_before, self._turn)

    def _expected(self, seat: _Seat) -> tuple[float, ...]:
        return seat.worths or seat.acceptance.survivals(self._drafts.most)

    def _join(self, slot: int) -> None:
        _, request = self._waiting.popitem(last=False)
        self._seats[slot] = _Seat(live=self._turns.open(slot, request), acceptance=Acceptance(self._everyone))
        self._runner.cache.clear(slot)
        self._drafts.drafter.begin(slot, request)

    def _leave(self, slot: int) -> None:
        del self._seats[slot]
        self._held.pop(slot, None)

    def _prefill(self, slot: int, count: int) -> list[Outcome]:
        """Cache rows of a prompt; the last of them give the first token."""
        seat = self._seats[slot]
        prompt, last = seat.live.request.prompt, seat.cached + count
        logits = torch.empty(0)
        while seat.cached < last:
            start = seat.cached
            ids = prompt[start : min(last, start + PREFILL_ROWS)]
            rows = Rows(ids, range(start, start + len(ids)), (Segment(slot, start, len(ids)),))
            logits, tapped = self._runner.prefill(rows, self._taps)
            self._runner.cache.commit(slot, len(ids))
            seat.cached += len(ids)
            if self._reader is not None:
                self._reader.extend(slot, tapped)
        if seat.cached < len(prompt):
            return []
        plain, finite = logits.argmax(-1), bool(logits.max().isfinite())
        if not finite:
            return [self._refused(slot)]
        event = self._turns.emit(seat.live, NOTHING, logits, plain.tolist(), None)
        outcome = (seat.live.request.name, event)
        if seat.live.done:
            self._leave(slot)
        return [outcome]

    def _propose(self, slots: Sequence[int], now: Plan) -> dict[int, Proposal]:
        """Drafts of these requests, no more than was planned."""
        if not slots or not now.drafts:
            return dict.fromkeys(slots, NOTHING)
        drafts, seats = self._drafts, [self._seats[slot] for slot in slots]
        limits = [self._turns.limit(seat.live) for seat in seats]
        if drafts.ration is not None:
            drafts.ration.set(now.drafts, now.budget)
        if not drafts.tree:
            limits = [min(limit, now.drafts) for limit in limits]
        if drafts.ration is None and now.budget is not None:
            expected = (self._expected(seat) for seat in seats)
            worths = [one[:limit] for one, limit in zip(expected, limits, strict=True)]
            limits = list(allot(worths, now.budget))
        wanted = [
            Wanted(slot, seat.live.emitted, limit)
            for slot, seat, limit in zip(slots, seats, limits, strict=True)
        ]
        proposals = drafts.drafter.propose(wanted)
        hold_limits(wanted, proposals)
        if drafts.tree and drafts.ration is not None:
            asked = [seat for seat, limit in zip(seats, limits, strict=True) if limit > 0]
            for seat, worths_of_tree in zip(asked, drafts.ration.worths, strict=True):
                seat.worths = worths_of_tree
        return dict(zip(slots, proposals, strict=True))

    def _settle(self, slots: Sequence[int], proposals: Sequence[Proposal], ran: Ran) -> list[Outcome]:
        """Accept, emit and commit, request by request."""
        choices, finite = ran.choices.tolist(), ran.finite.tolist()
        spans, first = [], 0
        for proposal in proposals:
            spans.append(slice(first, first + 1 + len(proposal.token_ids)))
            first = spans[-1].stop
        good = [number for number, span in enumerate(spans) if all(finite[span])]
        cuts = None
        if not self._settings.ragged:
            cuts = dict(zip(good, self._lockstep(good, slots, proposals, spans, ran, choices), strict=True))
        outcomes: list[Outcome] = []
        for number, (slot, proposal, span) in enumerate(zip(slots, proposals, spans, strict=True)):
            if number not in good:
                outcomes.append(self._refused(slot))
                continue
            seat, cache = self._seats[slot], self._runner.cache
            live, before = seat.live, cache.length(slot)
            if cuts is None:
                event, path = self._turns.verify(live, proposal, ran.logits[span], choices[span], cache)
            else:
                event, path = self._turns.finish(live, proposal, cuts[number], ran.logits[span], cache), None
            kept = cache.length(slot) - before
            if proposal.parents is None:
                seat.acceptance.saw(len(proposal.token_ids), kept - 1)
            outcomes.append((live.request.name, event))
            if live.done:
                self._leave(slot)
            elif self._reader is not None:
                self._reader.extend(slot, _kept(ran.tapped[span], path, kept))
        return outcomes

    def _lockstep(
        self,
        good: Sequence[int],
        slots: Sequence[int],
        proposals: Sequence[Proposal],
        spans: Sequence[slice],
        ran: Ran,
        choices: Sequence[int],
    ) -> list[Verified]:
        verified = [
            self._turns.settle(
                self._seats[slots[n]].live, proposals[n], ran.logits[spans[n]], choices[spans[n]]
            )
            for n in good
        ]
        return held_back([proposals[n].token_ids for n in good], verified)

    def _refused(self, slot: int) -> Outcome:
        name = self._seats[slot].live.request.name
        self._leave(slot)
        return name, RequestError(NO_NUMBERS)


def _kept(tapped: Tensor, path: Sequence[int] | None, count: int) -> Tensor:
    """Tapped states of the rows that were committed."""
    return (tapped if path is None else tapped[path])[:count]
