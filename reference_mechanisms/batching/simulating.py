"""Tokens a second of a batch from recorded acceptance and a measured table, without a target.

The scheduler is the one of the batch loop; in place of drafting and verifying stand recorded numbers. What a
step costs is what the table says of its shape: with `buckets` the cheapest recorded one that holds it; else
the row count's own cost, on straight lines between the table's shapes. A trace holds for every draft length
up to its own: a shorter draft is accepted up to its end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reference_mechanisms.batching.costs import CostError, StepCosts
from reference_mechanisms.batching.expecting import Acceptance
from reference_mechanisms.batching.scheduler import Plan, Running, State, allot, plan
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.batching.traces.format import Attempt, Trace, hold_whole
from reference_mechanisms.drafters.scheduling import survivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What came of a simulation."""

    tokens: int
    milliseconds: float
    steps: int
    rows: int  # verified, without padding
    padding: int  # rows beside them
    stalled_ms: float  # of prompts while others waited to decode

    @property
    def tokens_per_second(self) -> float:
        """Of all requests together."""
        return 1000.0 * self.tokens / self.milliseconds


@dataclass(slots=True, kw_only=True)
class _Seat:
    trace: Trace
    acceptance: Acceptance
    left: int  # prompt rows
    emitted: int = 0

    @property
    def attempt(self) -> Attempt:
        return self.trace.attempts[self.emitted - 1]

    @property
    def limit(self) -> int:
        return self.trace.tokens - self.emitted - 1


def simulate(traces: Sequence[Trace], settings: BatchSettings, costs: StepCosts, drafts: int) -> Simulated:
    """Decode the requests of a trace, `settings.slots` at a time, in their order.

    Raises:
        CostError: the table does not hold a shape that is needed.
        TraceError: there is no trace, or one is shorter than its output.
    """
    hold_whole(traces)
    waiting, seats, everyone = list(traces), dict[int, _Seat](), Acceptance()
    tokens = steps = rows = padding = turn = 0
    milliseconds = stalled = 0.0
    before: int | None = None
    while waiting or seats:
        state = _state(waiting, seats, settings, before, turn, drafts)
        now = plan(state, settings, costs, drafts)
        for slot in now.joins:
            trace = waiting.pop(0)
            seats[slot] = _Seat(trace=trace, acceptance=Acceptance(everyone), left=trace.prompt)
        prompt_rows = sum(piece.rows for piece in now.prefill)
        spent = costs.prefill_ms(prompt_rows)
        stalled += spent if state.running else 0.0
        for slot, count in now.prefill:
            seats[slot].left -= count
            if not seats[slot].left:
                seats[slot].emitted = 1
                tokens += 1
        verified = [slot for slot in now.cohorts.verified if slot in seats]
        if verified:
            counts = _counts(verified, seats, now)
            used = len(verified) + sum(counts)
            step_ms, held = _step_ms(len(verified), used, now, settings, costs)
            spent, rows, padding = spent + step_ms, rows + used, padding + held - used
            tokens += _accept(verified, counts, seats, settings)
            steps, before, turn = steps + 1, now.drafts, turn + 1
        milliseconds += spent
        for slot in [slot for slot, seat in seats.items() if seat.emitted >= seat.trace.tokens]:
            del seats[slot]
    return Simulated(
        tokens=tokens, milliseconds=milliseconds, steps=steps, rows=rows, padding=padding, stalled_ms=stalled
    )


def variants(settings: BatchSettings) -> Mapping[str, BatchSettings]:
    """Everything, nothing, each mechanism alone, and each left out of everything."""
    off: dict[str, Any] = {
        "ragged": False,
        "budget": False,
        "adaptive": False,
        "cohorts": False,
        "prefill_rows": None,
        "buckets": False,
    }
    on = {name: getattr(settings, name) for name in off}
    chosen = [name for name in off if on[name] != off[name]]
    bare = dataclasses.replace(settings, **off)
    found = {"everything": settings, "nothing": bare}
    # Cohorts are not in step with each other: alone they need requests to go on by themselves.
    with_it: dict[str, dict[str, Any]] = {"cohorts": {"ragged": True}}
    found |= {
        f"{name} alone": dataclasses.replace(bare, **{name: on[name]}, **with_it.get(name, {}))
        for name in chosen
    }
    left = [name for name in chosen if not (name == "ragged" and settings.cohorts)]
    found |= {f"without {name}": dataclasses.replace(settings, **{name: off[name]}) for name in left}
    return found


def _state(
    waiting: Sequence[Trace],
    seats: Mapping[int, _Seat],
    settings: BatchSettings,
    before: int | None,
    turn: int,
    drafts: int,
) -> State:
    running = tuple(
        Running(slot, seat.limit, seat.acceptance.survivals(drafts))
        for slot, seat in sorted(seats.items())
        if not seat.left
    )
    filling = tuple((slot, seat.left) for slot, seat in seats.items() if seat.left)
    free = tuple(slot for slot in range(settings.slots) if slot not in seats)
    return State(running, filling, tuple(one.prompt for one in waiting), free, before, turn)


def _counts(slots: Sequence[int], seats: Mapping[int, _Seat], now: Plan) -> list[int]:
    """Drafts of each request that are verified."""
    worths = []
    for slot in slots:
        seat = seats[slot]
        most = max(0, min(now.drafts, seat.limit))
        told = survivals(seat.attempt.confidences[:most])
        worths.append(told if len(told) == most else list(seat.acceptance.survivals(most)))
    return list(allot(worths, now.budget))


def _accept(
    slots: Sequence[int], counts: Sequence[int], seats: Mapping[int, _Seat], settings: BatchSettings
) -> int:
    """Emit what the trace says; the number of tokens."""
    accepted = [min(seats[slot].attempt.accepted, count) for slot, count in zip(slots, counts, strict=True)]
    if not settings.ragged:
        accepted = [min(accepted)] * len(accepted)
    emitted = 0
    for slot, count, kept in zip(slots, counts, accepted, strict=True):
        seat = seats[slot]
        seat.acceptance.saw(count if settings.ragged else kept, kept)
        block = min(kept + 1, seat.trace.tokens - seat.emitted)
        seat.emitted += block
        emitted += block
    return emitted


def _step_ms(
    requests: int, rows: int, now: Plan, settings: BatchSettings, costs: StepCosts
) -> tuple[float, int]:
    """Milliseconds of a step, and the rows that it runs, padding among them."""
    bucket = costs.bucket(requests, rows)
    if bucket is None:
        raise CostError(
            f"no bucket of `verify` holds {rows} rows of {requests} requests; measure a larger one"
        )
    if now.cohorts.drafted:
        beside = costs.overlap_ms(requests, rows, now.drafts)
        if beside is not None:
            return costs.step_ms + beside, bucket.rows
    drafting = costs.draft_ms(requests, now.drafts)
    if settings.buckets:
        return costs.step_ms + drafting + bucket.milliseconds, bucket.rows
    return costs.step_ms + drafting + costs.unpadded_ms(requests, rows), rows
