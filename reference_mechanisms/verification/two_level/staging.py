"""Policy S: the target verifies the beginning of a draft, and the rest only if the output leads into it.

Both levels are the target. Where the tokens of a step, its own one among them, all stand in the draft, what
stands behind them is the next step's draft, and none is made. That costs one step more than verifying all at
once where everything is right, and saves the rows of the rest where it is not.

This is a drafter around a drafter; what is verified when does not look at random draws of the target, so the
output is the target's own at any temperature. Source: verification of the main path first, as in public
engines; the same tokens for each draft as verifying all of it, by `gain.staged_gain`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from reference_mechanisms.drafters.protocol import ContextDrafter, Drafter, Proposal, Wanted
from reference_mechanisms.request import Request
from reference_mechanisms.verification.tree import ANCHOR


class StagingDrafter:
    """Hands a drafter's drafts on in pieces; `drafters.protocol.ContextDrafter`."""

    def __init__(self, inner: Drafter, first: int) -> None:
        """Verify `first` tokens of a draft at a time; of a tree, its first nodes."""
        self._inner, self._first = inner, first
        self._reader = inner if isinstance(inner, ContextDrafter) else None
        self.taps = () if self._reader is None else self._reader.taps
        self._waiting: dict[int, tuple[int, Proposal]] = {}  # output tokens in front, whole draft

    def begin(self, slot: int, request: Request) -> None:
        """As in `protocol.Drafter`."""
        self._waiting.pop(slot, None)
        self._inner.begin(slot, request)

    def extend(self, slot: int, taps: Tensor) -> None:
        """As in `protocol.ContextDrafter`; a drafter takes in several steps at once as well."""
        if self._reader is not None:
            self._reader.extend(slot, taps)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """The next piece of each draft; a new draft where the output has left the old one."""
        rests = {one.slot: self._rest(one) for one in wanted}
        asked = [one for one in wanted if not rests[one.slot].token_ids]
        made = self._inner.propose(asked) if asked else []
        rests |= {one.slot: proposal for one, proposal in zip(asked, made, strict=True)}
        self._waiting |= {one.slot: (len(one.token_ids), rests[one.slot]) for one in wanted}
        return [beginning(rests[one.slot], self._first) for one in wanted]

    def _rest(self, one: Wanted) -> Proposal:
        before, draft = self._waiting.pop(one.slot, (0, Proposal(())))
        rest = behind(draft, one.token_ids[before:])
        return rest if rest.depth <= one.limit else Proposal(())


def beginning(draft: Proposal, count: int) -> Proposal:
    """The first tokens of a draft, or the first nodes of a tree."""
    q, parents = draft.probabilities, draft.parents
    return Proposal(
        draft.token_ids[:count],
        None if q is None else q[:count],
        None if parents is None else parents[:count],
    )


def behind(draft: Proposal, token_ids: Sequence[int]) -> Proposal:
    """What a draft holds behind some tokens that follow its anchor; nothing where it does not hold them.

    Args:
        draft: a chain, or a tree in the order of its probabilities.
        token_ids: what was emitted behind the anchor.
    """
    if draft.parents is None:
        count = len(token_ids)
        if draft.token_ids[:count] != tuple(token_ids):
            return Proposal(())
        q = draft.probabilities
        return Proposal(draft.token_ids[count:], None if q is None else q[count:])
    nodes = {key: node for node, key in enumerate(zip(draft.parents, draft.token_ids, strict=True))}
    at = ANCHOR
    for token in token_ids:
        if (at, token) not in nodes:
            return Proposal(())
        at = nodes[at, token]
    places = {at: ANCHOR}
    for node, parent in enumerate(draft.parents):
        if parent in places and node != at:
            places[node] = len(places) - 1
    kept = [node for node in places if node != at]
    return Proposal(
        tuple(draft.token_ids[node] for node in kept),
        parents=tuple(places[draft.parents[node]] for node in kept),
    )
