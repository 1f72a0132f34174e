"""Every variant of ours at every load: bits first, then times, variants in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from reference_mechanisms.batching.bench.lines import Served
from reference_mechanisms.batching.bench.resident import DRIVEN, SHARED, TREES, Exact, Resident
from reference_mechanisms.batching.settings import BatchSettings

EVERYTHING = "everything"


class Plan(NamedTuple):
    """What is timed."""

    requests: Mapping[int, int]  # of the set, by load
    full: Mapping[int, BatchSettings]  # everything on, by load
    variants: tuple[str, ...] = ()  # none: all
    repeats: int = 3
    exact: int = 64  # requests whose logits are compared; 0: none


@dataclass(slots=True, kw_only=True)
class Ran:
    """What there is so far."""

    exact: Exact | None = None
    timed: list[Served] = field(default_factory=list)


def run(engine: Resident, plan: Plan, heard: Callable[[Ran, str], None]) -> Ran:
    """Compare logits at the largest load; then warm up and time, every second repeat in the reverse order.

    Raises:
        OutputsDifferError: drafts changed a token.
        MechanismError: a variant is unknown.
    """
    ran, largest = Ran(), max(plan.requests)
    if plan.exact:
        count = min(plan.exact, plan.requests[largest])
        full = plan.full[largest]
        asked = plan.variants or engine.variants(full)
        led = [EVERYTHING, *(name for name in (DRIVEN, TREES, SHARED) if name in asked)]
        found = [engine.hold_exact(name, full, count) for name in led]
        ran.exact = Exact(found[0].tokens, sum(one.mismatches for one in found))
        heard(ran, f"{ran.exact.tokens} tokens compared, {ran.exact.mismatches} requests have other logits")
    for load, count in plan.requests.items():
        names = plan.variants or engine.variants(plan.full[load])
        for repeat in range(-1, plan.repeats):
            for name in reversed(names) if repeat % 2 else names:
                served = engine.serve(name, plan.full[load], count)
                if repeat >= 0:
                    ran.timed.append(served)
            heard(ran, f"{load} requests at a time: repeat {repeat + 1} of {plan.repeats}")
    return ran
