"""What a drafter is to the engine. Nothing a drafter proposes can change the output, only its speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

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


@runtime_checkable
class ContextDrafter(Drafter, Protocol):
    """A drafter that reads hidden states of the target."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers, counted from 0, whose output it reads; -1 is the embedding."""
        ...

    def extend(self, slot: int, taps: Tensor) -> None:
        """Positions of a request were committed; together the calls cover all in front of the anchor.

        Args:
            slot: of the request; `begin` came before.
            taps: hidden states of the committed positions alone, tapped layers side by side, [rows,
                taps x hidden]: the prompt's first, then the anchor and the accepted drafts of each step.
        """
        ...
