"""Drafters with known answers: they read zero and full acceptance off any correct verification.

Both know the target's own continuation of each prompt, recorded before the run. `null` proposes
tokens that are never the next ones: acceptance length is 1 and what is measured is the price of
verification. `replay` proposes the continuation itself, also past the end of the output: every draft
is accepted up to the cut, and what is measured is the ceiling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reference_mechanisms.drafters.protocol import Proposal, Wanted
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Request

Recorded = Mapping[tuple[int, ...], Sequence[int]]  # prompt -> continuation, stops ignored


class ReplayDrafter:
    """Proposes the recorded continuation."""

    def __init__(self, drafts: int, recorded: Recorded) -> None:
        """Draft `drafts` tokens a step."""
        self._drafts = drafts
        self._recorded = recorded
        self._of_slot: dict[int, Sequence[int]] = {}

    def begin(self, slot: int, request: Request) -> None:
        """Find the recording of the prompt.

        Raises:
            RequestError: there is none.
        """
        found = self._recorded.get(request.prompt)
        if found is None:
            raise RequestError(
                f"{request.name}: its continuation was not recorded; prepare the arm for it first"
            )
        self._of_slot[slot] = found

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """The recorded tokens that come next."""
        return [Proposal(self._next(*one)) for one in wanted]

    def _next(self, slot: int, emitted: Sequence[int], limit: int) -> tuple[int, ...]:
        start = len(emitted)
        return tuple(self._of_slot[slot][start : start + min(self._drafts, limit)])


class NullDrafter(ReplayDrafter):
    """Proposes tokens that are not the recorded ones."""

    def __init__(self, drafts: int, recorded: Recorded, vocab_size: int) -> None:
        """Draft `drafts` wrong tokens a step."""
        super().__init__(drafts, recorded)
        self._vocab_size = vocab_size

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """The neighbour in the vocabulary of each recorded token that comes next."""
        return [
            Proposal(tuple((token + 1) % self._vocab_size for token in self._next(*one))) for one in wanted
        ]


class NoDrafter:
    """Autoregressive decoding: every step verifies nothing and emits one token."""

    def begin(self, slot: int, request: Request) -> None:
        """Nothing to keep."""

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """No draft for anyone."""
        return [Proposal(()) for _ in wanted]
