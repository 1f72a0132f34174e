"""A batch engine as those see it who feed it: requests in at any time, final tokens out step by step.

Nothing here knows of threads: one caller at a time, and every call returns. A request is known by its name,
which is unlike that of any other that has not ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Event, Request

# Name of the request, and what became of it: tokens that are final now, or why it cannot go on. An event with
# a finish reason, or an error, is the last outcome of its request.
Outcome = tuple[str, Event | RequestError]


class BatchEngine(Protocol):
    """Decodes many requests at a time."""

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        ...

    def submit(self, request: Request) -> str:
        """Take a request in; it joins when there is room. Returns its handle, the name.

        Raises:
            RequestError: it does not fit the target, or one of this name has not ended.
        """
        ...

    def cancel(self, name: str) -> None:
        """Forget a request, wherever it stands; one that has ended is none."""
        ...

    def step(self) -> Sequence[Outcome]:
        """Do one step: admit, prefill a piece, draft, verify. Events carry the slot of the request."""
        ...

    def close(self) -> None:
        """Let go of caches; what is open is dropped."""
        ...
