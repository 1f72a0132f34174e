"""The decode loop: prefill, then draft, verify, cut, commit, until every request has ended.

Autoregressive decoding is the same loop with empty drafts: every arm runs the same kernels, and what
differs between arms is only how many rows a verify step has.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import (
    ContextDrafter,
    Drafter,
    Proposal,
    StaticDrafter,
    Wanted,
)
from reference_mechanisms.engine.choices import Place, argmax, settle
from reference_mechanisms.engine.lanes import Lanes
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.stops import Cut, Decode, Ending, ending_of, visible_text
from reference_mechanisms.engine.target import Cache, Forward, Target
from reference_mechanisms.engine.trees import follow, row_parents
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Event, Request
from reference_mechanisms.verification.chain import Verified
from reference_mechanisms.verification.tree import positions_of

if TYPE_CHECKING:
    from hashlib import _Hash

PREFILL_ROWS = 512  # prompt rows of one forward


@dataclass(slots=True, kw_only=True)
class _Live:
    """A request while it is decoded."""

    slot: int
    request: Request
    ending: Ending
    key: int
    emitted: list[int] = field(default_factory=list)
    hasher: _Hash | None = None
    done: bool = False

    @property
    def place(self) -> Place:
        return Place(self.request, self.ending.stop_ids, self.emitted, self.key)


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
        self._cache: Cache | None = None
        self._lanes = lanes

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
            self._check(request)
        if self._lanes is not None and len(requests) == 1:
            yield from self._single(self._lanes, requests[0], drafter)
            return
        cache = self._cache_for(len(requests))
        batch = [self._open(slot, request) for slot, request in enumerate(requests)]
        reader = drafter if isinstance(drafter, ContextDrafter) else None
        taps = () if reader is None else reader.taps
        for live in batch:
            logits, tapped = self._prefill(cache, live, taps)
            drafter.begin(live.slot, live.request)
            if reader is not None:
                reader.extend(live.slot, tapped)
            yield self._emit(live, Proposal(()), logits, argmax(logits), None)
        while active := [live for live in batch if not live.done]:
            wanted = [Wanted(live.slot, live.emitted, self._limit(live)) for live in active]
            proposals = drafter.propose(wanted)
            _hold_limits(wanted, proposals)
            rows = _pack(active, proposals, cache)
            forward = self.target.forward(rows, cache, taps)
            logits, tapped = self.target.logits(forward.hidden), _side_by_side(forward)
            plain = argmax(logits)
            first = 0
            events = []
            for live, proposal in zip(active, proposals, strict=True):
                last, before = first + 1 + len(proposal.token_ids), cache.length(live.slot)
                event, path = self._verify(live, proposal, logits[first:last], plain[first:last], cache)
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
        cache, live = lanes.cache, self._open(0, request)
        lanes.take(live)
        reader = drafter if isinstance(drafter, ContextDrafter) else None
        taps = () if reader is None else reader.taps
        drives = self._rules.plain_greedy and request.sampling.greedy and not request.sampling.adjusts
        program = (
            drafter if drives and isinstance(drafter, StaticDrafter) and drafter.key is not None else None
        )
        drives = drives and (program is not None or isinstance(drafter, NoDrafter))
        lane = lanes.driving(taps, program) if drives else lanes.checking(taps)
        logits, tapped = self._prefill(cache, live, taps)
        event = self._emit(live, Proposal(()), logits, argmax(logits), None)
        if drives:
            yield event
            if not live.done:
                ahead = live.hasher is None  # else each step's logits are wanted before the next
                lane.begin(request.prompt, tapped, live.emitted[-1], self._limit(live), ahead=ahead)
            while not live.done:
                lanes.hold(live)
                checked = lane.step(cache.length(0))
                yield self._emit(live, Proposal(checked.draft), checked.logits, checked.plain, cache)
            return
        drafter.begin(0, request)
        if reader is not None:
            reader.extend(0, tapped)
        yield event
        while not live.done:
            wanted = [Wanted(0, live.emitted, self._limit(live))]
            proposals = drafter.propose(wanted)
            _hold_limits(wanted, proposals)
            if proposals[0].parents is not None:
                raise ValueError("steps of fixed shape verify chains; decode trees without lanes")
            lanes.hold(live)
            start = cache.length(0)
            checked = lane.verify((live.emitted[-1], *proposals[0].token_ids), start)
            event = self._emit(live, proposals[0], checked.logits, checked.plain, cache)
            if reader is not None and not live.done:
                reader.extend(0, checked.tapped[: cache.length(0) - start].clone())
            yield event

    def _check(self, request: Request) -> None:
        vocabulary, sampling = self.target.config.vocab_size, request.sampling
        if not request.prompt:
            raise RequestError(f"{request.name}: the prompt is empty; give at least one token")
        outside = next((token for token in request.prompt if not 0 <= token < vocabulary), None)
        if outside is not None:
            raise RequestError(
                f"{request.name}: prompt token {outside} is not in the target's vocabulary of {vocabulary}"
            )
        if len(request.prompt) + sampling.max_tokens > self._capacity:
            raise RequestError(
                f"{request.name}: a prompt of {len(request.prompt)} tokens and max_tokens = "
                f"{sampling.max_tokens} do not fit the context of {self._capacity}; shorten one of them"
            )

    def _open(self, slot: int, request: Request) -> _Live:
        return _Live(
            slot=slot,
            request=request,
            ending=ending_of(request.sampling, self._eos_ids),
            key=self._rules.key(request.sampling, request.prompt, slot),
            hasher=hashlib.sha256() if request.capture_logits else None,
        )

    def _limit(self, live: _Live) -> int:
        room = self._capacity - len(live.request.prompt) - len(live.emitted)
        return min(room, self._rules.limit(len(live.emitted), live.ending.max_tokens))

    def _cache_for(self, slots: int) -> Cache:
        if self._cache is None or self._cache.slots < slots:
            self._cache = self.target.new_cache(slots, self._capacity + self._spare)
        return self._cache

    def _prefill(self, cache: Cache, live: _Live, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Cache the prompt; logits [1, vocabulary] behind its last token, and its tapped states."""
        prompt, slot = live.request.prompt, live.slot
        cache.clear(slot)
        hidden, tapped = torch.empty(0), []
        for start in range(0, len(prompt), PREFILL_ROWS):
            ids = prompt[start : start + PREFILL_ROWS]
            rows = Rows(ids, range(start, start + len(ids)), (Segment(slot, start, len(ids)),))
            forward = self.target.forward(rows, cache, taps)
            hidden = forward.hidden
            tapped.append(_side_by_side(forward))
            cache.commit(slot, len(ids))
        return self.target.logits(hidden[-1:]), torch.cat(tapped)

    def _verify(
        self, live: _Live, proposal: Proposal, logits: Tensor, plain: Sequence[int], cache: Cache
    ) -> tuple[Event, list[int] | None]:
        """Verify, cut and commit one request; with the rows of the path that a tree was cut to."""
        if proposal.parents is None:
            return self._emit(live, proposal, logits, plain, cache), None
        chain, path = follow(live.place, proposal, logits, plain, self._rules)
        event = self._emit(live, chain, logits[path], [plain[row] for row in path], cache, path)
        return event._replace(drafted=len(proposal.token_ids)), path

    def _emit(
        self,
        live: _Live,
        proposal: Proposal,
        logits: Tensor,
        plain: Sequence[int],
        cache: Cache | None,
        path: Sequence[int] | None = None,
    ) -> Event:
        """Verify, cut and commit one request.

        Args:
            live: the request.
            proposal: a chain.
            logits: raw, of the anchor and the chain.
            plain: argmax of each of those rows.
            cache: None for the prefill, which has committed.
            path: rows of the chain in a tree's forward; None: the forward was the chain.
        """
        verified = settle(live.place, proposal, logits, plain, self._rules)
        block = self._rules.block(proposal.token_ids, verified)
        kept = self._rules.cut(live.emitted, block, live.ending, self._decode)
        live.emitted.extend(kept.token_ids)
        live.done = kept.finish_reason is not None
        if live.hasher is not None:
            _hash_rows(live.hasher, logits[: len(kept.token_ids)])
        drafted = len(proposal.token_ids)
        if cache is not None:
            keep = self._rules.keep(drafted, verified)
            if path is None:
                cache.commit(live.slot, keep)
            else:
                cache.commit_path(live.slot, path[:keep])
        return self._event(live, kept, drafted, verified, prefill=cache is None)

    def _event(self, live: _Live, kept: Cut, drafted: int, verified: Verified, *, prefill: bool) -> Event:
        event = Event(
            live.slot,
            "prefill" if prefill else "step",
            kept.token_ids,
            drafted=drafted,
            accepted=self._rules.accepted(verified, kept),
        )
        if not live.done:
            return event
        return event._replace(
            finish_reason=kept.finish_reason,
            stop_reason=kept.stop_reason,
            text=visible_text(live.emitted, live.ending, self._decode),
            logits_sha256=None if live.hasher is None else live.hasher.hexdigest(),
        )


def _side_by_side(forward: Forward) -> Tensor:
    """Tapped states of each row, [rows, taps x hidden]."""
    return torch.cat(forward.taps, dim=-1) if forward.taps else forward.hidden[:, :0]


def _hold_limits(wanted: Sequence[Wanted], proposals: Sequence[Proposal]) -> None:
    for one, proposal in zip(wanted, proposals, strict=True):
        if proposal.depth > one.limit:
            raise ValueError(f"slot {one.slot}: a draft of {proposal.depth}, limit {one.limit}")


def _pack(active: Sequence[_Live], proposals: Sequence[Proposal], cache: Cache) -> Rows:
    """Anchor and draft of each request, one behind the other."""
    ids: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    segments = []
    for live, proposal in zip(active, proposals, strict=True):
        start, count = cache.length(live.slot), 1 + len(proposal.token_ids)
        ids += (live.emitted[-1], *proposal.token_ids)
        if proposal.parents is None:
            positions += range(start, start + count)
        else:
            positions += positions_of(proposal.parents, start)
        parents += row_parents(proposal)
        segments.append(Segment(live.slot, start, count))
    trees = any(proposal.parents is not None for proposal in proposals)
    return Rows(ids, positions, segments, parents if trees else None)


def _hash_rows(hasher: _Hash, logits: Tensor) -> None:
    """Add the exact bits of raw logits [rows, vocabulary]."""
    hasher.update(logits.contiguous().view(torch.uint8).cpu().numpy().data)


def _only_length(before: Sequence[int], block: Sequence[int], ending: Ending, decode: Decode) -> Cut:
    """The cut of a recording: no stop ends it."""
    del decode
    kept = tuple(block[: ending.max_tokens - len(before)])
    return Cut(kept, "length" if len(before) + len(kept) >= ending.max_tokens else None)
