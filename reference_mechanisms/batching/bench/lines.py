"""What a bench asks of an engine in a process of its own, and what that answers: JSON lines."""

from __future__ import annotations

import msgspec


class Tally:
    """Tokens as they come, and when the load began to fall."""

    def __init__(self, requests: int, concurrency: int, began_s: float) -> None:
        """Count from here.

        Args:
            requests: of the set.
            concurrency: that run at a time.
            began_s: now.
        """
        self._left, self._concurrency, self._began_s = requests, concurrency, began_s
        self._full: tuple[int, float] | None = None
        self.tokens = 0

    def count(self, tokens: int, *, ended: int, now_s: float) -> None:
        """A step ended.

        Args:
            tokens: that it emitted.
            ended: requests that it ended.
            now_s: when.
        """
        self.tokens += tokens
        self._left -= ended
        if self._full is None and self._left < self._concurrency:
            self._full = self.tokens, now_s - self._began_s

    @property
    def full(self) -> tuple[int, float]:
        """Tokens at the full load, and how long it lasted.

        Raises:
            ValueError: not one request has ended.
        """
        if self._full is None:
            raise ValueError("no request has ended")
        return self._full


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
        full_tokens: emitted while as many requests as shall run at a time were under way or waited.
        full_s: as long; what follows is a tail of fewer and fewer requests.
        verifications: verify steps, counted for each request by itself; None: nothing was drafted.
        drafted: draft tokens verified in them.
        accepted: of those.
        steps: of the engine, each of all requests that it verified; None: not told.
    """

    concurrency: int
    requests: int
    tokens: int
    wall_s: float
    full_tokens: int
    full_s: float
    variant: str = ""
    verifications: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    steps: int | None = None

    @property
    def tokens_per_second(self) -> float:
        """Of all requests together at the full load, prompts included."""
        return self.full_tokens / self.full_s

    @property
    def acceptance_length(self) -> float | None:
        """Mean tokens of a verify step, the bonus token included."""
        if not self.verifications or self.accepted is None:
            return None
        return 1.0 + self.accepted / self.verifications
