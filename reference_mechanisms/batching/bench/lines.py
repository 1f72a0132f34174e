"""What a bench asks of an engine in a process of its own, and what that answers: JSON lines."""

from __future__ import annotations

import msgspec


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Serve the first requests of the set, and take the time.

    Attributes:
        concurrency: requests at a time; the others wait in the engine.
        requests: of the set.
        variant: mechanisms that are on, by name; nothing for an engine that has one way only.
        tokens: most of each output; 0: as the traces have it.
    """

    concurrency: int
    requests: int
    variant: str = ""
    tokens: int = 0


class Served(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request set, served.

    Attributes:
        concurrency: requests at a time.
        requests: of the set.
        variant: as asked.
        tokens: emitted, by all requests.
        wall_s: from the first request's way in to the last token.
        verifications: verify steps, counted for each request by itself; None: nothing was drafted.
        drafted: draft tokens verified in them.
        accepted: of those.
        steps: of the engine, each of all requests that it verified; None: not told.
    """

    concurrency: int
    requests: int
    tokens: int
    wall_s: float
    variant: str = ""
    verifications: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    steps: int | None = None

    @property
    def tokens_per_second(self) -> float:
        """Of all requests together, prompts included."""
        return self.tokens / self.wall_s

    @property
    def acceptance_length(self) -> float | None:
        """Mean tokens of a verify step, the bonus token included."""
        if not self.verifications or self.accepted is None:
            return None
        return 1.0 + self.accepted / self.verifications
