"""Traces and their file; what a batch would accept that follows them.

A trace holds for every draft length up to its own: a shorter draft is accepted up to its end. So one trace
tells what each engine is to accept, whatever it drafts and wherever its steps begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from reference_mechanisms.errors import MechanismError
from reference_mechanisms.verification.figures_file import FiguresFile


class TraceError(MechanismError):
    """Traces cannot be made or used: the message names the field and how to mend it."""


class Attempt(NamedTuple):
    """What a drafter did at one place of an output."""

    accepted: int  # of a draft as long as the trace's
    confidences: tuple[float, ...] = ()  # of each draft, where the drafter tells
    # Of the target's token in the drafter's list, level by level as far as it is in one; none: not told. As
    # many zeros lead as are accepted.
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """What a drafter's other tokens are worth."""

    shares: tuple[float, ...]  # of the places where the best is wrong: those where rank 1, 2, .. is right
    off_spine: float  # factor of what stands behind a token that is not the best


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One request."""

    prompt: int  # rows
    tokens: int  # of its output
    attempts: tuple[Attempt, ...]  # one for each place of the output, from the second token on


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Where a trace comes from."""

    source: str  # run and arm, or what it was imposed by
    drafts: int  # of every attempt
    synthetic: bool = False  # imposed from a seed: no drafter did it
    siblings: Siblings | None = None  # of attempts with ranks; None: they tell none


TRACES: FiguresFile[Recording, tuple[Trace, ...]] = FiguresFile(
    "specpilot/acceptance-traces/1", Recording, tuple[Trace, ...], "traces", "acceptance"
)


def read_traces(path: Path) -> tuple[Recording, tuple[Trace, ...]]:
    """Where traces come from, and the traces.

    Raises:
        FiguresError: the file is none of this kind.
        TraceError: there is no trace, or one is shorter than its output.
    """
    recording, traces = TRACES.read(path)
    hold_whole(traces)
    return recording, traces


def hold_whole(traces: Sequence[Trace]) -> None:
    """Hold that each trace goes on to the end of its output.

    Raises:
        TraceError: one does not, or there is none.
    """
    if not traces or any(one.tokens < 1 or len(one.attempts) < one.tokens - 1 for one in traces):
        raise TraceError(
            "`traces`: each needs `tokens` of at least 1 and an attempt for each behind the first"
        )


def steps_of(trace: Trace, drafts: int) -> Iterator[int]:
    """Accepted drafts of each step of a request that always drafts so many, before any cut at the end."""
    emitted = 1
    while emitted < trace.tokens:
        accepted = min(trace.attempts[emitted - 1].accepted, drafts)
        yield accepted
        emitted += accepted + 1


def acceptance_rates(traces: Sequence[Trace], drafts: int) -> tuple[float, ...]:
    """Share of steps that accept at least so many drafts, from 1 to `drafts`."""
    counts = [accepted for trace in traces for accepted in steps_of(trace, drafts)]
    return tuple(sum(one >= most for one in counts) / len(counts) for most in range(1, drafts + 1))


def acceptance_length(traces: Sequence[Trace], drafts: int) -> float:
    """Mean tokens of a step, the bonus token included."""
    return 1.0 + sum(acceptance_rates(traces, drafts))
