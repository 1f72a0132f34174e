"""Policy F, near ties only: fast arithmetic decides where it is sure, the target where the choice was close.

Level one is the same function in other arithmetic. Where its two best logits at every row of a step lie
`margin` apart or more, its choice counts. Where some do not, the target runs the rows that it has not seen,
and this step's; its logits count, and its keys, values and states take the place of level one's. Prompts are
the target's.

**This is the one policy that is not lossless whatever level one does**: the output is the target's if level
one's logits are nowhere off by half of `margin`, which whoever checks the output has to see. With every token
looked at, in groups, policy F is `holding` with a `margin`: then level one decides nothing.

Source: fast path, exact replay and rollback as in LLM-42 (arXiv 2601.17768), which looks at every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.protocol import ContextDrafter, Drafter, Proposal, Wanted
from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.target import Forward, Target, TargetConfig
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Request
from reference_mechanisms.targets.hybrid_cache import HybridCache


@dataclass(slots=True)
class _Unseen:
    """Committed rows of a slot that the target has not run."""

    token_ids: list[int] = field(default_factory=list)


class _Ran(NamedTuple):
    """Rows of one slot in the last forward."""

    token_ids: Sequence[int]
    exact: bool


class RecheckedCache:
    """Caches of both levels; level one's is always complete, the target's may lag."""

    def __init__(self, fast: Any, exact: Any) -> None:
        """Join two caches of the same layout."""
        self.fast, self.exact = fast, exact
        self.slots: int = fast.slots
        self.unseen = [_Unseen() for _ in range(self.slots)]
        self.ran: dict[int, _Ran] = {}
        self.steps = self.rechecked = 0  # segments of verify steps, and those that the target ran

    def length(self, slot: int) -> int:
        """Committed positions of a slot."""
        length: int = self.exact.length(slot) + len(self.unseen[slot].token_ids)
        return length

    def clear(self, slot: int) -> None:
        """Begin a new sequence."""
        self.fast.clear(slot)
        self.exact.clear(slot)
        self.unseen[slot].token_ids.clear()
        self.ran.pop(slot, None)

    def commit(self, slot: int, kept: int) -> None:
        """Keep the first `kept` rows of the slot's last forward."""
        self.commit_path(slot, range(kept))

    def commit_path(self, slot: int, path: Sequence[int]) -> None:
        """Keep a path of rows of the slot's last forward, by the level that ran them last."""
        ran, unseen = self.ran.pop(slot), self.unseen[slot].token_ids
        if not ran.exact:
            self.fast.commit_path(slot, path)
            unseen += [ran.token_ids[row] for row in path]
            return
        behind, begin = len(unseen), self.exact.length(slot)
        self.exact.commit_path(slot, [*range(behind), *(behind + row for row in path)])
        unseen.clear()
        adopt(self.fast, self.exact, slot, begin)


class RecheckedTarget:
    """Level one in front of the target; an `engine.target.Target`. Its hidden states are logits."""

    def __init__(self, fast: Target, exact: Target, margin: float, rows: int) -> None:
        """Verify with `fast` where it is sure.

        Args:
            fast: level one: the same layers, other arithmetic.
            exact: the target.
            margin: logits that the best token must lie above the second.
            rows: of a verify step, at most; longer segments are pieces of prompts.
        """
        self.fast, self.exact, self._margin, self._rows = fast, exact, margin, rows
        self.dtype, self.device = exact.dtype, exact.device

    @property
    def config(self) -> TargetConfig:
        """As in `Target`."""
        return self.exact.config

    @property
    def linear_kernel(self) -> str:
        """As in `Target`."""
        return f"{self.exact.linear_kernel}; level one: {self.fast.linear_kernel}, {self.fast.dtype}"

    def new_cache(self, slots: int, capacity: int) -> RecheckedCache:
        """Caches of both levels."""
        return RecheckedCache(self.fast.new_cache(slots, capacity), self.exact.new_cache(slots, capacity))

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: RecheckedCache, taps: Sequence[int] = ()) -> Forward:
        """Run level one, and the target where its choice was close; `hidden` is the logits that count."""
        found: list[Forward | None] = []
        first = 0
        for segment in rows.segments:
            mine = _slice(rows, first, segment)
            prompt = segment.rows > self._rows or segment.start == 0
            one = None if prompt else self._sure(mine, cache, taps)
            if not prompt:
                cache.steps += 1
                cache.rechecked += one is None
            cache.ran[segment.slot] = _Ran(mine.token_ids, exact=one is None)
            found.append(one)
            first += segment.rows
        again = [segment for segment, one in zip(rows.segments, found, strict=True) if one is None]
        if again:
            self._look_again(rows, again, found, cache, taps)
        done = [one for one in found if one is not None]
        hidden = torch.cat([one.hidden for one in done])
        return Forward(
            hidden, tuple(torch.cat(parts) for parts in zip(*(one.taps for one in done), strict=True))
        )

    def embed(self, token_ids: Tensor) -> Tensor:
        """As in `Target`."""
        return self.exact.embed(token_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """The rows themselves: `forward` has computed them."""
        return hidden

    def _sure(self, rows: Rows, cache: RecheckedCache, taps: Sequence[int]) -> Forward | None:
        """Level one's rows of one request; None if a choice was close."""
        ran = self.fast.forward(rows, cache.fast, taps)
        logits = self.fast.logits(ran.hidden).to(self.dtype)
        best = logits.float().topk(2, dim=-1).values
        if not bool((best[:, 0] - best[:, 1] >= self._margin).all()):
            return None
        return Forward(logits, tuple(tap.to(self.dtype) for tap in ran.taps))

    def _look_again(
        self,
        rows: Rows,
        again: Sequence[Segment],
        found: list[Forward | None],
        cache: RecheckedCache,
        taps: Sequence[int],
    ) -> None:
        """Run the target on what it has not seen and these rows; fill them in."""
        ids: list[int] = []
        positions: list[int] = []
        parents: list[int] = []
        segments, places = [], []
        firsts, first = {}, 0
        for segment in rows.segments:
            firsts[segment.slot] = first
            first += segment.rows
        for segment in again:
            mine, unseen = _slice(rows, firsts[segment.slot], segment), cache.unseen[segment.slot].token_ids
            behind, start = len(unseen), segment.start - len(unseen)
            places.append((len(ids) + behind, segment.rows))
            ids += (*unseen, *mine.token_ids)
            positions += (*range(start, segment.start), *mine.positions)
            own = range(-1, segment.rows - 1) if mine.parents is None else mine.parents
            parents += (*range(-1, behind - 1), *(behind + parent for parent in own))
            segments.append(Segment(segment.slot, start, behind + segment.rows))
        trees = None if rows.parents is None else parents
        ran = self.exact.forward(Rows(ids, positions, segments, trees), cache.exact, taps)
        keep = torch.cat([torch.arange(at, at + count) for at, count in places]).to(self.device)
        logits = self.exact.logits(ran.hidden[keep])
        counts = [count for _, count in places]
        taps_kept = (torch.split(tap[keep], counts) for tap in ran.taps)
        parts = zip(torch.split(logits, counts), *taps_kept, strict=True)
        for index, one in enumerate(found):
            if one is None:
                hidden, *tapped = next(parts)
                found[index] = Forward(hidden, tuple(tapped))


class GreedyOnly:
    """A drafter that refuses requests whose choices do not hang on the best logits alone."""

    def __init__(self, inner: Drafter) -> None:
        """Draft as `inner` does."""
        self._inner = inner
        self._reader = inner if isinstance(inner, ContextDrafter) else None
        self.taps = () if self._reader is None else self._reader.taps

    def begin(self, slot: int, request: Request) -> None:
        """As in `protocol.Drafter`.

        Raises:
            RequestError: tokens are drawn, or logits adjusted.
        """
        if not request.sampling.greedy or request.sampling.adjusts:
            raise RequestError(
                f"{request.name}: near ties of raw logits say nothing about tokens that are drawn or "
                f"penalised; give `recheck` = 'all', or temperature 0 without penalties"
            )
        self._inner.begin(slot, request)

    def extend(self, slot: int, taps: Tensor) -> None:
        """As in `protocol.ContextDrafter`."""
        if self._reader is not None:
            self._reader.extend(slot, taps)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """As in `protocol.Drafter`."""
        return self._inner.propose(wanted)


def adopt(into: Any, source: Any, slot: int, begin: int) -> None:
    """Make a cache hold what another one of the same layout holds, from position `begin` on.

    Args:
        into: rounds to its own type.
        source: of the same kind.
        slot: of both.
        begin: position; what lies before it is taken as equal.
    """
    if isinstance(into, HybridCache) and isinstance(source, HybridCache):
        into.copy_states(source, slot)
        into, source = into.kv, source.kv
    if not isinstance(into, KVCache) or not isinstance(source, KVCache):
        raise TypeError(f"{type(into).__name__} cannot take over a {type(source).__name__}")
    count = source.length(slot) - begin
    for mine, theirs in zip(into.window(slot, begin, count), source.window(slot, begin, count), strict=True):
        mine.copy_(theirs)
    into.commit(slot, source.length(slot) - into.length(slot))


def _slice(rows: Rows, first: int, segment: Segment) -> Rows:
    mine = slice(first, first + segment.rows)
    parents = None if rows.parents is None else rows.parents[mine]
    return Rows(rows.token_ids[mine], rows.positions[mine], (segment,), parents)
