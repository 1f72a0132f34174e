"""Where the time of a step goes, from a profiler's record of the device. Pure, but for `record`.

Kernels of a step run one behind the other, and may be brought onto the device before the one in front has
ended. So a kernel is given the time from the end of the one in front to its own; what lies between the end
of one and a later begin of the next is idle.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

END, DRAFTED = "_settle", ("_replay", "_join_best")  # kernels that end a verify step, and a draft
IDLE = "idle"
# Stage of a kernel, by a part of its name; the first that fits.
STAGES = (
    ("weight12_stream", "weights"),
    ("_attend", "attention"),
    ("_join_chunks", "attention"),
    ("_rotate_write", "attention"),
    ("_add_norm", "norms"),
    ("_gate", "gate"),
    ("_join_best", "sampling"),
    ("_best", "sampling"),
    ("_settle", "sampling"),
    ("_replay", "sampling"),
    ("emcpy", "copies"),
)
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Work:
    """Something the device did."""

    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """Medians of a step, in microseconds, by part ("verify", "draft") and stage."""

    steps: int
    step_us: float
    stages: dict[str, float]
    launches: dict[str, float]  # how many
    names: dict[str, float]  # the same by kernel


def record(work: Callable[[], object]) -> list[Work]:
    """What the device does while `work` runs."""
    import torch  # noqa: PLC0415 - the rest needs none
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    events: Iterable[Any] = found.events() or ()
    device = [one for one in events if "cuda" in str(one.device_type).lower()]
    return [Work(one.name, one.time_range.start, one.time_range.end) for one in device]


def stage_of(name: str) -> str:
    """The stage of a kernel."""
    return next((stage for part, stage in STAGES if part in name), OTHER)


def waterfall(work: Sequence[Work]) -> Waterfall:
    """Sum up the steps of a record, each from the end of a verify step to that of the next.

    Raises:
        ValueError: the record holds no whole step.
    """
    steps = _steps(sorted(work, key=lambda one: (one.start_us, one.end_us)))
    if not steps:
        raise ValueError("the profiler recorded no whole step; decode more tokens")
    made = [_summed(front, step) for front, step in steps]
    return Waterfall(
        steps=len(steps),
        step_us=statistics.median(step[-1].end_us - front.end_us for front, step in steps),
        stages=_medians([one[0] for one in made]),
        launches=_medians([one[1] for one in made]),
        names=_medians([one[2] for one in made]),
    )


def _steps(ordered: Sequence[Work]) -> list[tuple[Work, list[Work]]]:
    """The end of a verify step, and all work behind it up to the next end."""
    ends = [place for place, one in enumerate(ordered) if END in one.name]
    return [(ordered[first], list(ordered[first + 1 : last + 1])) for first, last in itertools.pairwise(ends)]


def _summed(front: Work, step: Sequence[Work]) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    stages: dict[str, float] = {}
    launches: dict[str, float] = {}
    names: dict[str, float] = {}
    drafted = max((n for n, one in enumerate(step) if one.name.startswith(DRAFTED)), default=-1)
    end = front.end_us
    for place, one in enumerate(step):
        part = "draft" if place <= drafted else "verify"
        idle, busy = max(0.0, one.start_us - end), max(0.0, one.end_us - max(end, one.start_us))
        stage = f"{part} {stage_of(one.name)}"
        for key, value in ((stage, busy), (f"{part} {IDLE}", idle)):
            stages[key] = stages.get(key, 0.0) + value
        launches[stage] = launches.get(stage, 0.0) + 1
        name = f"{part} {one.name[:60]}"
        names[name] = names.get(name, 0.0) + busy
        end = max(end, one.end_us)
    return stages, launches, names


def _medians(found: Sequence[dict[str, float]]) -> dict[str, float]:
    keys = sorted({key for one in found for key in one})
    return {key: round(statistics.median(one.get(key, 0.0) for one in found), 2) for key in keys}
