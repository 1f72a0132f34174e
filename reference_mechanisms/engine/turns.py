"""One request's turn at a step: from logits to the tokens that are final, whatever loop asks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reference_mechanisms.drafters.protocol import Proposal, Wanted
from reference_mechanisms.engine.choices import Place, settle
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.stops import Cut, Decode, Ending, ending_of, visible_text
from reference_mechanisms.engine.target import Cache, Forward
from reference_mechanisms.engine.trees import follow, row_parents
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Event, Request
from reference_mechanisms.verification.chain import Verified
from reference_mechanisms.verification.tree import positions_of

if TYPE_CHECKING:
    from hashlib import _Hash


@dataclass(slots=True, kw_only=True)
class Live:
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
        """Where it stands."""
        return Place(self.request, self.ending.stop_ids, self.emitted, self.key)


class Turns:
    """Opens requests and takes their turns."""

    def __init__(
        self, eos_ids: Sequence[int], decode: Decode, capacity: int, vocab_size: int, rules: Rules
    ) -> None:
        """Arguments as of `decode.Decoder`."""
        self._eos_ids, self._decode = tuple(eos_ids), decode
        self.capacity, self._vocab_size = capacity, vocab_size
        self._rules = rules

    @property
    def plain_greedy(self) -> bool:
        """See `Rules.plain_greedy`."""
        return self._rules.plain_greedy

    def check(self, request: Request) -> None:
        """Hold that a request fits.

        Raises:
            RequestError: it does not.
        """
        vocabulary, sampling = self._vocab_size, request.sampling
        if not request.prompt:
            raise RequestError(f"{request.name}: the prompt is empty; give at least one token")
        outside = next((token for token in request.prompt if not 0 <= token < vocabulary), None)
        if outside is not None:
            raise RequestError(
                f"{request.name}: prompt token {outside} is not in the target's vocabulary of {vocabulary}"
            )
        if len(request.prompt) + sampling.max_tokens > self.capacity:
            raise RequestError(
                f"{request.name}: a prompt of {len(request.prompt)} tokens and max_tokens = "
                f"{sampling.max_tokens} do not fit the context of {self.capacity}; shorten one of them"
            )

    def open(self, slot: int, request: Request) -> Live:
        """A request takes a slot."""
        return Live(
            slot=slot,
            request=request,
            ending=ending_of(request.sampling, self._eos_ids),
            key=self._rules.key(request.sampling, request.prompt, slot),
            hasher=hashlib.sha256() if request.capture_logits else None,
        )

    def limit(self, live: Live) -> int:
        """Most draft tokens that it can still use."""
        room = self.capacity - len(live.request.prompt) - len(live.emitted)
        return min(room, self._rules.limit(len(live.emitted), live.ending.max_tokens))

    def verify(
        self, live: Live, proposal: Proposal, logits: Tensor, plain: Sequence[int], cache: Cache
    ) -> tuple[Event, list[int] | None]:
        """Verify, cut and commit a chain or a tree.

        Args:
            live: the request.
            proposal: its draft.
            logits: raw, of the anchor and the draft.
            plain: argmax of each of those rows.
            cache: that holds the rows.

        Returns:
            The event, and the rows of the path that a tree was cut to.
        """
        if proposal.parents is None:
            return self.emit(live, proposal, logits, plain, cache), None
        chain, path = follow(live.place, proposal, logits, plain, self._rules)
        event = self.emit(live, chain, logits[path], [plain[row] for row in path], cache, path)
        return event._replace(drafted=len(proposal.token_ids)), path

    def emit(
        self,
        live: Live,
        proposal: Proposal,
        logits: Tensor,
        plain: Sequence[int],
        cache: Cache | None,
        path: Sequence[int] | None = None,
    ) -> Event:
        """Verify, cut and commit a chain.

        Args:
            live: the request.
            proposal: a chain.
            logits: raw, of the anchor and the chain.
            plain: argmax of each of those rows.
            cache: None for the prefill, which has committed.
            path: rows of the chain in a tree's forward; None: the forward was the chain.
        """
        verified = self.settle(live, proposal, logits, plain)
        return self.finish(live, proposal, verified, logits, cache, path)

    def settle(self, live: Live, proposal: Proposal, logits: Tensor, plain: Sequence[int]) -> Verified:
        """Verify a chain; arguments as of `emit`."""
        return settle(live.place, proposal, logits, plain, self._rules)

    def finish(
        self,
        live: Live,
        proposal: Proposal,
        verified: Verified,
        logits: Tensor,
        cache: Cache | None,
        path: Sequence[int] | None = None,
    ) -> Event:
        """Cut and commit what was verified; arguments as of `emit`."""
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

    def _event(self, live: Live, kept: Cut, drafted: int, verified: Verified, *, prefill: bool) -> Event:
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


def side_by_side(forward: Forward) -> Tensor:
    """Tapped states of each row, [rows, taps x hidden]."""
    return torch.cat(forward.taps, dim=-1) if forward.taps else forward.hidden[:, :0]


def hold_limits(wanted: Sequence[Wanted], proposals: Sequence[Proposal]) -> None:
    """Hold that no draft is deeper than was asked for.

    Raises:
        ValueError: one is.
    """
    for one, proposal in zip(wanted, proposals, strict=True):
        if proposal.depth > one.limit:
            raise ValueError(f"slot {one.slot}: a draft of {proposal.depth}, limit {one.limit}")


def pack(active: Sequence[Live], proposals: Sequence[Proposal], cache: Cache) -> Rows:
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
