"""What a drafter is to the engine. Nothing a drafter proposes can change the output, only its speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from reference_mechanisms.request import Request


class Proposal(NamedTuple):
    """A chain of draft tokens for one request; it may be empty."""

    token_ids: tuple[int, ...]
    probabilities: Tensor | None = None  # q [k, vocabulary] each was drawn from; None: a point mass


class Wanted(NamedTuple):
    """A request that asks for a draft."""

    slot: int
    token_ids: Sequence[int]  # emitted so far, the anchor last; the prompt was given to `begin`
    limit: int  # most draft tokens that can still be used


class Drafter(Protocol):
    """Proposes drafts for the requests of one batch at a time."""

    def begin(self, slot: int, request: Request) -> None:
        """A new request takes a slot of the batch; what the slot held is over."""
        ...

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """One proposal for each, in order; each at most `limit` long."""
        ...
