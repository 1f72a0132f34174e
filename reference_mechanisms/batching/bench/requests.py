"""The request set of a bench: lengths and acceptance of traces, prompts of random ids."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import NamedTuple

from reference_mechanisms.batching.traces.format import Trace, TraceError


class Work(NamedTuple):
    """One request."""

    prompt: tuple[int, ...]  # ids
    trace: Trace

    def cut(self, tokens: int) -> Work:
        """The same with no more tokens of output; 0 cuts nothing."""
        if not tokens or tokens >= self.trace.tokens:
            return self
        return self._replace(trace=dataclasses.replace(self.trace, tokens=tokens))


def request_set(traces: Sequence[Trace], count: int, vocabulary: int, seed: int) -> list[Work]:
    """The first so many; the same arguments give the same prompts in every process.

    Raises:
        TraceError: there are fewer traces.
    """
    if count > len(traces):
        raise TraceError(f"{count} requests, and there are {len(traces)} traces; make more of them")
    rng = random.Random(f"prompts {seed}")  # noqa: S311 - no secret
    return [
        Work(tuple(rng.randrange(vocabulary) for _ in range(trace.prompt)), trace) for trace in traces[:count]
    ]
