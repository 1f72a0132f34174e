"""From the verify steps of a run to traces.

A run tells what was accepted where its steps began. A draft that begins inside a step is taken to be worth
what was left of that step's draft: so a request that verifies less at a time emits the same tokens in more
steps, and never gains by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reference_mechanisms.batching.traces.format import Attempt, Recording, Trace, TraceError


class Step(NamedTuple):
    """One verify step of a response, after the cut at a stop."""

    drafted: int
    accepted: int
    emitted: int
    confidences: tuple[float, ...] = ()  # of the drafts, where the drafter tells


class Recorded(NamedTuple):
    """A response as far as traces ask."""

    prompt: int  # tokens
    prefill: int  # tokens that the prefill emitted
    steps: tuple[Step, ...]


def trace_of(recorded: Recorded) -> Trace:
    """The trace of one response."""
    attempts = [
        Attempt(max(step.accepted - place, 0), step.confidences[place:])
        for step in recorded.steps
        for place in range(step.emitted)
    ]
    return Trace(prompt=recorded.prompt, tokens=recorded.prefill + len(attempts), attempts=tuple(attempts))


def traces_of(source: str, responses: Sequence[Recorded]) -> tuple[Recording, tuple[Trace, ...]]:
    """Traces of an arm's responses.

    Args:
        source: run and arm.
        responses: one of each prompt.

    Raises:
        TraceError: nothing was drafted, or the engine did not tell its steps.
    """
    drafts = max((step.drafted for one in responses for step in one.steps), default=0)
    if not drafts:
        raise TraceError(
            f"{source}: no verify step with a draft is recorded; give an arm whose engine tells them"
        )
    if any(one.prefill != 1 for one in responses):
        raise TraceError(f"{source}: a prefill emitted no token; record the run again")
    return Recording(source=source, drafts=drafts), tuple(map(trace_of, responses))
