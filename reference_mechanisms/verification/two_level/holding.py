"""Policies H and F: level one verifies drafts in a row, and the target verifies what came of them at once.

    q <- emitted
    repeat:  d <- drafter(q);  q <- q + what level one accepts of d + its own token
    target:  verifies q, all of it, as any chain; level one forgets what the target did not say

This is a drafter around a drafter. The target gets a chain and treats it as every chain, so the output is its
own whatever level one does, at any temperature and with penalties. Level one decides with the rules of the
engine and the random numbers of the positions: the better its distribution, the more it agrees.

Policy H has a level one that is cheaper and often wrong; sources: HiSpec (arXiv 2510.01336), TriForce (arXiv
2404.11912). Policy F has one that is the same function in faster arithmetic, and goes on until a choice was
close: the target then looks at all tokens of the group; source: LLM-42 (arXiv 2601.17768).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reference_mechanisms.drafters.protocol import (
    ContextDrafter,
    Drafter,
    Proposal,
    RevocableDrafter,
    Wanted,
)
from reference_mechanisms.engine.choices import Place, argmax, settle
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.stops import Ending, ending_of
from reference_mechanisms.engine.target import RewindableCache, Target
from reference_mechanisms.engine.trees import follow, row_parents
from reference_mechanisms.request import Request
from reference_mechanisms.verification.tree import positions_of

PREFILL_ROWS = 512  # prompt rows of one forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """How long level one goes on alone."""

    rounds: int  # drafts that it verifies before the target does, at most
    tokens: int  # that it holds, at most: rows of the target's pass, the anchor not counted
    confidence: float = 0.0  # it stops behind a token of its own that it gives less than this
    margin: float = 0.0  # and behind one whose logit lies less than this above the next best


@dataclass(slots=True, kw_only=True)
class _Slot:
    request: Request
    ending: Ending
    key: int
    told: list[int] = field(default_factory=list)  # output tokens in level one's cache
    agreed: int = 0  # of them when the round began


@dataclass(slots=True, kw_only=True)
class _Run:
    """What level one holds of one request."""

    wanted: Wanted
    room: int  # tokens that may still be held
    held: list[int] = field(default_factory=list)

    @property
    def text(self) -> tuple[int, ...]:
        """Output and what is held."""
        return (*self.wanted.token_ids, *self.held)


class HoldingDrafter:
    """Drafts with level one and a drafter for it; `drafters.protocol.ContextDrafter`."""

    def __init__(
        self,
        level_one: Target,
        cache: RewindableCache,
        inner: Drafter,
        holding: Holding,
        eos_ids: Sequence[int],
    ) -> None:
        """Begin a batch.

        Args:
            level_one: the first verifier.
            cache: of level one, with a slot for every request, and behind the positions of the output room
                for a draft.
            inner: drafts for level one; it may draft nothing, then level one drafts alone.
            holding: how long level one goes on.
            eos_ids: of the target.

        Raises:
            ValueError: the drafter reads layers that level one does not have, or it cannot forget.
        """
        self._reader = inner if isinstance(inner, ContextDrafter) else None
        self.taps = () if self._reader is None else self._reader.taps
        layers = level_one.config.layers
        if holding.rounds > 1 and max(self.taps, default=-1) >= layers:
            raise ValueError(
                f"the drafter reads layer {max(self.taps)}, and level one ends behind {layers} layers; give "
                f"one round, or a drafter that reads less"
            )
        if self._reader is not None and not isinstance(inner, RevocableDrafter):
            raise ValueError("the drafter reads what level one commits and cannot forget it")
        self._level_one, self._cache, self._inner, self._holding = level_one, cache, inner, holding
        self._eos_ids, self._rules = eos_ids, Rules()
        self._slots: dict[int, _Slot] = {}

    @torch.inference_mode()
    def begin(self, slot: int, request: Request) -> None:
        """Level one reads the prompt."""
        self._slots[slot] = _Slot(
            request=request,
            ending=ending_of(request.sampling, self._eos_ids),
            key=self._rules.key(request.sampling, request.prompt, slot),
        )
        self._cache.clear(slot)
        for start in range(0, len(request.prompt), PREFILL_ROWS):
            ids = request.prompt[start : start + PREFILL_ROWS]
            rows = Rows(ids, range(start, start + len(ids)), (Segment(slot, start, len(ids)),))
            self._level_one.forward(rows, self._cache)
            self._cache.commit(slot, len(ids))
        self._inner.begin(slot, request)

    def extend(self, slot: int, taps: Tensor) -> None:
        """The target's own states of committed positions go to the drafter; level one needs none."""
        if self._reader is not None:
            self._reader.extend(slot, taps)

    @torch.inference_mode()
    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """What level one holds in the end, a chain for each request."""
        runs = [_Run(wanted=one, room=min(one.limit, self._holding.tokens)) for one in wanted]
        for run in runs:
            self._agree(run.wanted)
        going = [run for run in runs if run.room > 0]
        marked: list[int] = []
        for number in range(self._holding.rounds):
            if not going:
                break
            asked = [Wanted(run.wanted.slot, run.text, run.room - 1) for run in going]
            proposals = self._inner.propose(asked)
            if number == 0 and isinstance(self._inner, RevocableDrafter):
                marked = [one.slot for one in asked]
                for slot in marked:
                    self._inner.mark(slot)
            going = self._verify(going, proposals, last=number + 1 == self._holding.rounds)
        if isinstance(self._inner, RevocableDrafter):
            for slot in marked:
                self._inner.rewind(slot)
        return [Proposal(tuple(run.held)) for run in runs]

    def _agree(self, one: Wanted) -> None:
        """Take back what level one holds and the target did not say."""
        slot, said = self._slots[one.slot], one.token_ids[:-1]
        common = slot.agreed
        while common < min(len(slot.told), len(said)) and slot.told[common] == said[common]:
            common += 1
        if len(slot.told) > slot.agreed:
            self._cache.rewind(one.slot, common - slot.agreed)
        del slot.told[common:]
        slot.agreed = common
        self._cache.mark(one.slot)

    def _verify(self, runs: Sequence[_Run], proposals: Sequence[Proposal], *, last: bool) -> list[_Run]:
        """One round of level one; the requests that go on."""
        rows, places = self._pack(runs, proposals)
        forward = self._level_one.forward(rows, self._cache, () if last else self.taps)
        tapped = torch.cat(forward.taps, dim=-1) if forward.taps else None
        logits = self._level_one.logits(forward.hidden)
        going = []
        for run, proposal, (first, behind) in zip(runs, proposals, places, strict=True):
            slot = self._slots[run.wanted.slot]
            anchor = first + behind  # row, behind those that level one had not read
            mine = logits[anchor : anchor + 1 + len(proposal.token_ids)]
            place = Place(slot.request, slot.ending.stop_ids, run.text, slot.key)
            plain, path = argmax(mine), list(range(len(mine)))
            chain = Proposal(proposal.token_ids)
            if proposal.parents is not None:
                chain, path = follow(place, proposal, mine, plain, self._rules)
            verified = settle(place, chain, mine[path], [plain[row] for row in path], self._rules)
            path = path[: 1 + verified.accepted]
            kept = [*range(behind), *(behind + row for row in path)]
            self._cache.commit_path(run.wanted.slot, kept)
            slot.told += run.text[len(slot.told) :]
            slot.told += chain.token_ids[: verified.accepted]
            block = self._rules.block(chain.token_ids, verified)
            run.held += block
            run.room -= len(block)
            sure = self._sure(mine[path], verified.next_token)
            if run.room <= 0 or not sure or any(token in slot.ending.stop_ids for token in block):
                continue
            going.append(run)
            if self._reader is not None and tapped is not None and not last:
                self._reader.extend(run.wanted.slot, tapped[[anchor + row for row in path]])
        return going

    def _sure(self, logits: Tensor, token: int) -> bool:
        """Of the choices of some rows, the last of which is `token`."""
        confidence, margin = self._holding.confidence, self._holding.margin
        if confidence and float(logits[-1].float().softmax(-1)[token]) < confidence:
            return False
        if not margin:
            return True
        best = logits.float().topk(2, dim=-1).values
        return bool((best[:, 0] - best[:, 1] >= margin).all())

    def _pack(
        self, runs: Sequence[_Run], proposals: Sequence[Proposal]
    ) -> tuple[Rows, list[tuple[int, int]]]:
        """Rows of level one: what it has not read, the anchor, the draft.

        Returns:
            The rows, and of each request its first row and how many stand in front of its anchor.
        """
        ids: list[int] = []
        positions: list[int] = []
        parents: list[int] = []
        segments, places = [], []
        for run, proposal in zip(runs, proposals, strict=True):
            slot, start = run.wanted.slot, self._cache.length(run.wanted.slot)
            unread = run.text[len(self._slots[slot].told) : -1]
            behind = len(unread)
            places.append((len(ids), behind))
            ids += (*unread, run.text[-1], *proposal.token_ids)
            positions += range(start, start + behind)
            nodes = proposal.parents
            chain = range(-1, len(proposal.token_ids) - 1)
            positions += positions_of(chain if nodes is None else nodes, start + behind)
            parents += (*range(-1, behind - 1), *(behind + parent for parent in row_parents(proposal)))
            segments.append(Segment(slot, start, behind + 1 + len(proposal.token_ids)))
        trees = any(proposal.parents is not None for proposal in proposals)
        return Rows(ids, positions, segments, parents if trees else None), places
