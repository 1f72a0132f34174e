"""What a drafter is to the engine. Nothing a drafter proposes can change the output, only its speed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from reference_mechanisms.kernels.step.trees import TreeTurn
from reference_mechanisms.request import Request
from reference_mechanisms.verification.tree import depths_of


class Proposal(NamedTuple):
    """Draft tokens for one request, a chain or a tree; there may be none."""

    token_ids: tuple[int, ...]
    probabilities: Tensor | None = None  # q [k, vocabulary] each was drawn from; None: a point mass
    parents: tuple[int, ...] | None = None  # of a tree, as in `verification.tree.DraftTree`; None: a chain

    @property
    def depth(self) -> int:
        """Most of these tokens that can be accepted."""
        return len(self.token_ids) if self.parents is None else max(depths_of(self.parents), default=0)


class Wanted(NamedTuple):
    """A request that asks for a draft."""

    slot: int
    token_ids: Sequence[int]  # emitted so far, the anchor last; the prompt was given to `begin`
    limit: int  # most draft tokens that can still be used, one behind the other


class Drafter(Protocol):
    """Proposes drafts for the requests of one batch at a time."""

    def begin(self, slot: int, request: Request) -> None:
        """A new request takes a slot of the batch; what the slot held is over."""
        ...

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """One proposal for each, in order; each at most `limit` deep."""
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


@runtime_checkable
class RevocableDrafter(Drafter, Protocol):
    """A drafter that remembers what it was told, and can forget it again."""

    def mark(self, slot: int) -> None:
        """What is told of a request from here on may be taken back; it has just been drafted for."""
        ...

    def rewind(self, slot: int) -> None:
        """Forget what was told since `mark`."""
        ...


class DraftProgram(Protocol):
    """A drafter of one request as a device program: fixed shapes, and no question to the host."""

    @property
    def drafts(self) -> int:
        """Draft tokens it makes."""
        ...

    def absorb(self, taps: Tensor, positions: Tensor, following: Tensor, last: Tensor) -> None:
        """Take in positions; those behind `last` are padding, and overwritten later.

        Args:
            taps: tapped hidden states side by side, [rows, taps x hidden].
            positions: consecutive, [rows].
            following: token behind each position, [rows].
            last: row of the newest committed position, [1].
        """
        ...

    def draft(self, anchor: Tensor, start: Tensor) -> Tensor:
        """The best draft [drafts] behind the anchor [1], which is at position `start` [1]."""
        ...


@runtime_checkable
class TreeProgram(Protocol):
    """As `DraftProgram`, but it drafts trees."""

    @property
    def drafts(self) -> int:
        """Levels of its trees."""
        ...

    def absorb(self, taps: Tensor, positions: Tensor, following: Tensor, last: Tensor) -> None:
        """As in `DraftProgram`."""
        ...

    def plant(self, turn: TreeTurn) -> None:
        """Put the best tree behind the anchor of a turn; the turn says where, and how deep is useful."""
        ...


@runtime_checkable
class StaticDrafter(ContextDrafter, Protocol):
    """A drafter that can also be had as a device program, for greedy decoding."""

    @property
    def key(self) -> Hashable | None:
        """Equal for drafters that make the same drafts; None: this one has no program."""
        ...

    def program(self, positions: int) -> DraftProgram:
        """A new program.

        Args:
            positions: most that are absorbed or drafted from.
        """
        ...


@runtime_checkable
class PlantingDrafter(ContextDrafter, Protocol):
    """A drafter of trees that can also be had as a device program, for greedy decoding."""

    @property
    def nodes(self) -> int | None:
        """Of its trees, at most; None: it drafts chains."""
        ...

    @property
    def key(self) -> Hashable | None:
        """As in `StaticDrafter`."""
        ...

    def planter(self, positions: int) -> TreeProgram:
        """A new program; arguments as of `StaticDrafter.program`."""
        ...
