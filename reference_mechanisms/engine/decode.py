"""The decode loop: prefill, then draft, verify, cut, commit, until every request has ended.

Autoregressive decoding is the same loop with empty drafts: every arm runs the same kernels, and what
differs between arms is only how many rows a verify step has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import (
    ContextDrafter,
    Drafter,
    PlantingDrafter,
    Proposal,
    StaticDrafter,
    Wanted,
)
from reference_mechanisms.engine.choices import argmax
from reference_mechanisms.engine.lane import Checked, Lane
from reference_mechanisms.engine.lanes import Lanes
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.stops import Cut, Decode, Ending
from reference_mechanisms.engine.target import Cache, Target
from reference_mechanisms.engine.trees import row_parents
from reference_mechanisms.engine.turns import Live, Turns, hold_limits, pack, side_by_side
from reference_mechanisms.request import Event, Request

PREFILL_ROWS = 512  # prompt rows of one forward


class Decoder:
    """Decodes batches on one target; one batch at a time."""

    def __init__(
        self,
        target: Target,
        eos_ids: Sequence[int],
        decode: Decode,
        capacity: int,
        rules: Rules | None = None,
        lanes: Lanes | None = None,
        spare: int = 0,
    ) -> None:
        """Prepare; the cache is allocated for the first batch and grows with larger ones.

        Args:
            target: the model.
            eos_ids: its end-of-sequence ids.
            decode: text of ids, special tokens left out.
            capacity: most positions of a request, prompt and output.
            rules: the decisions of a step; None is the engine's own.
            lanes: step single requests in fixed shapes, on a cache of as many positions; None: in the
                shapes that they need.
            spare: positions of the cache behind `capacity`, for as many nodes of a draft tree.
        """
        self.target = target
        self._eos_ids = tuple(eos_ids)
        self._decode = decode
        self._capacity, self._spare = capacity, spare
        self._rules = rules or Rules()
        self._turns = Turns(eos_ids, decode, capacity, target.config.vocab_size, self._rules)
        self._cache: Cache | None = None
        self._lanes = lanes

    @property
    def turns(self) -> Turns:
        """Its rules of a request's turn, for a loop of another kind."""
        return self._turns

    @property
    def steps(self) -> str:
        """How single requests are stepped, for the report."""
        return "as many rows as needed" if self._lanes is None else self._lanes.about

    def stream(self, requests: Sequence[Request], drafter: Drafter) -> Iterator[Event]:
        """Decode a batch; yield every event as soon as its tokens are final.

        Raises:
            RequestError: a request does not fit the target; nothing of the batch was decoded.
        """
        for request in requests:
            self._turns.check(request)
        if self._lanes is not None and len(requests) == 1:
            yield from self._single(self._lanes, requests[0], drafter)
            return
        cache = self._cache_for(len(requests))
        batch = [self._turns.open(slot, request) for slot, request in enumerate(requests)]
        reader = drafter if isinstance(drafter, ContextDrafter) else None
        taps = () if reader is None else reader.taps
        for live in batch:
            logits, tapped = self._prefill(cache, live, taps)
            drafter.begin(live.slot, live.request)
            if reader is not None:
                reader.extend(live.slot, tapped)
            yield self._turns.emit(live, Proposal(()), logits, argmax(logits), None)
        while active := [live for live in batch if not live.done]:
            wanted = [Wanted(live.slot, live.emitted, self._turns.limit(live)) for live in active]
            proposals = drafter.propose(wanted)
            hold_limits(wanted, proposals)
            rows = pack(active, proposals, cache)
            forward = self.target.forward(rows, cache, taps)
            logits, tapped = self.target.logits(forward.hidden), side_by_side(forward)
            plain = argmax(logits)
            first = 0
            events = []
            for live, proposal in zip(active, proposals, strict=True):
                last, before = first + 1 + len(proposal.token_ids), cache.length(live.slot)
                event, path = self._turns.verify(live, proposal, logits[first:last], plain[first:last], cache)
                events.append(event)
                if reader is not None and not live.done:
                    mine = tapped[first:last] if path is None else tapped[first:last][path]
                    reader.extend(live.slot, mine[: cache.length(live.slot) - before])
                first = last
            yield from events

    def continuation(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Autoregressive output of each request up to `max_tokens`, whatever stop it passes."""
        past_stops = Decoder(
            self.target,
            self._eos_ids,
            self._decode,
            self._capacity,
            dataclasses.replace(self._rules, cut=_only_length),
        )
        past_stops._lanes = self._lanes
        if self._lanes is not None:  # what a single request would get
            return [past_stops._continued((request,))[0] for request in requests]
        past_stops._cache = self._cache_for(len(requests))
        return past_stops._continued(requests)

    def _continued(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        outputs: list[list[int]] = [[] for _ in requests]
        for event in self.stream(requests, NoDrafter()):
            outputs[event.slot].extend(event.token_ids)
        return [tuple(output) for output in outputs]

    def _single(self, lanes: Lanes, request: Request, drafter: Drafter) -> Iterator[Event]:
        """Decode one request in steps of fixed shape."""
        cache, live = lanes.cache, self._turns.open(0, request)
        lanes.take(live)
        reader = drafter if isinstance(drafter, ContextDrafter) else None
        taps = () if reader is None else reader.taps
        drives = self._rules.plain_greedy and request.sampling.greedy and not request.sampling.adjusts
        lane = driving_lane(lanes, taps, drafter) if drives else None
        logits, tapped = lanes.prefill(request.prompt, taps)
        event = self._turns.emit(live, Proposal(()), logits, argmax(logits), None)
        if lane is not None:
            yield event
            if not live.done:
                ahead = live.hasher is None  # else each step's logits are wanted before the next
                lane.begin(request.prompt, tapped, live.emitted[-1], self._turns.limit(live), ahead=ahead)
            while not live.done:
                lanes.hold(live)
                checked = lane.step(cache.length(0))
                draft, moved = Proposal(checked.draft), lanes.moved
                event = self._turns.emit(live, draft, checked.logits, checked.plain, moved)
                yield event._replace(drafted=checked.drafted)
            return
        drafter.begin(0, request)
        if reader is not None:
            reader.extend(0, tapped)
        yield event
        while not live.done:
            wanted = [Wanted(0, live.emitted, self._turns.limit(live))]
            proposals = drafter.propose(wanted)
            hold_limits(wanted, proposals)
            lanes.hold(live)
            start = cache.length(0)
            checked = _verified(lanes, taps, (live.emitted[-1], *proposals[0].token_ids), proposals[0], start)
            event, path = self._turns.verify(live, proposals[0], checked.logits, checked.plain, cache)
            if reader is not None and not live.done:
                mine = checked.tapped if path is None else checked.tapped[path]
                reader.extend(0, mine[: cache.length(0) - start].clone())
            yield event

    def _cache_for(self, slots: int) -> Cache:
        if self._cache is None or self._cache.slots < slots:
            self._cache = self.target.new_cache(slots, self._capacity + self._spare)
        return self._cache

    def _prefill(self, cache: Cache, live: Live, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Cache the prompt; logits [1, vocabulary] behind its last token, and its tapped states."""
        prompt, slot = live.request.prompt, live.slot
        cache.clear(slot)
        hidden, tapped = torch.empty(0), []
        for start in range(0, len(prompt), PREFILL_ROWS):
            ids = prompt[start : start + PREFILL_ROWS]
            rows = Rows(ids, range(start, start + len(ids)), (Segment(slot, start, len(ids)),))
            forward = self.target.forward(rows, cache, taps)
            hidden = forward.hidden
            tapped.append(side_by_side(forward))
            cache.commit(slot, len(ids))
        return self.target.logits(hidden[-1:]), torch.cat(tapped)


def driving_lane(lanes: Lanes, taps: Sequence[int], drafter: Drafter) -> Lane | None:
    """The lane in which a drafter drives itself; None: it cannot.

    Args:
        lanes: of the target.
        taps: layers that the drafter reads.
        drafter: of a greedy request.
    """
    if isinstance(drafter, NoDrafter):
        return lanes.driving(taps, None)
    if isinstance(drafter, PlantingDrafter) and drafter.nodes is not None:
        return None if drafter.key is None else lanes.planting(taps, drafter)
    if isinstance(drafter, StaticDrafter) and drafter.key is not None:
        return lanes.driving(taps, drafter)
    return None


def _verified(
    lanes: Lanes, taps: Sequence[int], token_ids: Sequence[int], proposal: Proposal, start: int
) -> Checked:
    """A draft of the host, run in the lane of its kind."""
    if proposal.parents is None:
        return lanes.checking(taps).verify(token_ids, start)
    return lanes.checking_trees(taps).verify(token_ids, row_parents(proposal), start)


def _only_length(before: Sequence[int], block: Sequence[int], ending: Ending, decode: Decode) -> Cut:
    """The cut of a recording: no stop ends it."""
    del decode
    kept = tuple(block[: ending.max_tokens - len(before)])
    return Cut(kept, "length" if len(before) + len(kept) >= ending.max_tokens else None)
