"""What the looks of telemetry mean: foreign load per block, and the spread of clocks and heat.

Foreign load is what all processes used minus what the run and its descendants used, as a share of
all logical cores. The kernel's own work and what a hypervisor took for other guests count as
foreign: they too slow the run down.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from harness.codec import Record
from harness.errors import UndefinedMetric
from harness.nvml import GpuReading


class GpuLook(NamedTuple):
    """One GPU at one moment, with who else is on it."""

    reading: GpuReading
    foreign: int | None  # compute processes that are not the run's; None where they cannot be told


class Sample(NamedTuple):
    """The machine at one moment. CPU seconds count from some moment before the run."""

    at: float  # seconds since the epoch
    total: float  # CPU seconds that all logical cores had to give, idle ones included
    busy: float  # of them used by any process, or taken by the hypervisor for other guests
    own: float  # of them used by the run and its descendants, ended ones included
    load_1m: float | None = None  # processes that run or wait, mean over a minute
    mhz: float | None = None  # mean over cores; None where it was not looked at
    celsius: float | None = None  # hottest CPU sensor
    gpus: tuple[GpuLook, ...] = ()  # empty where they were not looked at


class Effort(NamedTuple):
    """What looking took."""

    period_seconds: float  # shortest time between two looks
    cpu_seconds: float
    failed: int  # looks
    problem: str | None  # kind of the last failure


class Window(Protocol):
    """When a block ran; `harness.measure.supervise.BlockWindow` is one."""

    @property
    def launch(self) -> int:
        """Launch, counted from 0."""
        ...

    @property
    def block(self) -> int:
        """Block within its launch, counted from 0."""
        ...

    @property
    def started(self) -> float:
        """Seconds since the epoch."""
        ...

    @property
    def ended(self) -> float:
        """Seconds since the epoch."""
        ...


class BlockLoad(Record, frozen=True):
    """Load in the window of one block; shares are of all logical cores, 0 to 1."""

    launch: int
    block: int
    seconds: float
    samples: int  # looks inside the window
    foreign_mean: float | None  # None: the window was not watched
    foreign_max: float | None  # between two neighbouring looks
    own_mean: float | None
    load_1m_max: float | None


class Spread(Record, frozen=True):
    """Lowest, median and highest reading."""

    low: float
    median: float
    high: float
    samples: int


class GpuWatch(Record, frozen=True):
    """One GPU over the whole run."""

    gpu: int
    sm_mhz: Spread | None
    memory_mhz: Spread | None
    celsius: Spread | None
    watts: Spread | None
    slowed_by: dict[str, int]  # what held the clocks down -> looks that saw it
    processes_max: int | None  # compute processes on it at once
    foreign_processes_max: int | None  # of them not the run's


class TelemetrySummary(Record, frozen=True):
    """What the report keeps of all looks."""

    period_seconds: float
    samples: int
    failed_looks: int
    problem: str | None  # why load is not known, or looks failed
    overhead_share: float | None  # of one core, used by looking
    cores: int | None  # logical; the denominator of every share
    foreign_mean: float | None  # from the first look to the last
    foreign_max: float | None
    own_mean: float | None
    blocks: tuple[BlockLoad, ...]
    load_1m: Spread | None
    cpu_mhz: Spread | None
    cpu_celsius: Spread | None
    gpus: tuple[GpuWatch, ...]


def foreign_between(samples: Sequence[Sample], started: float, ended: float) -> float | None:
    """Mean share of the CPU that others used between two times; None if it was not watched."""
    return _defined(foreign_share, cut(samples, started, ended))


def foreign_share(samples: Sequence[Sample]) -> float:
    """Mean share of all logical cores that processes outside the run used, 0 to 1.

    Raises:
        UndefinedMetric: fewer than two looks, or no CPU time between the first and the last.
    """
    first, last = _ends(samples)
    others = (last.busy - first.busy) - (last.own - first.own)
    return min(1.0, max(0.0, others / (last.total - first.total)))


def own_share(samples: Sequence[Sample]) -> float:
    """Mean share of all logical cores that the run and its descendants used, 0 to 1.

    Raises:
        UndefinedMetric: fewer than two looks, or no CPU time between the first and the last.
    """
    first, last = _ends(samples)
    return min(1.0, max(0.0, (last.own - first.own) / (last.total - first.total)))


def cut(samples: Sequence[Sample], started: float, ended: float) -> tuple[Sample, ...]:
    """The looks between two times, with the counters interpolated at both ends.

    Empty when the time was not watched from start to end. A window shorter than the period still
    has its two ends, at the mean rate of the looks around it.
    """
    if len(samples) < 2 or ended <= started or started < samples[0].at or ended > samples[-1].at:
        return ()
    inside = [sample for sample in samples if started < sample.at < ended]
    return (_at(samples, started), *inside, _at(samples, ended))


def summarise(
    samples: Sequence[Sample], windows: Sequence[Window], effort: Effort, cores: int | None
) -> TelemetrySummary:
    """All looks in a few numbers.

    Args:
        samples: in the order they were taken.
        windows: of the blocks measured meanwhile.
        effort: what looking took.
        cores: logical cores of the machine.
    """
    foreign_mean = _defined(foreign_share, samples)
    problem = effort.problem
    if problem is None and foreign_mean is None:
        problem = "the system counted no CPU time between two looks"
    seconds = samples[-1].at - samples[0].at if samples else 0.0
    looks = [look for sample in samples for look in sample.gpus]
    return TelemetrySummary(
        period_seconds=effort.period_seconds,
        samples=len(samples),
        failed_looks=effort.failed,
        problem=problem,
        overhead_share=effort.cpu_seconds / seconds if seconds > 0.0 else None,
        cores=cores,
        foreign_mean=foreign_mean,
        foreign_max=_foreign_max(samples),
        own_mean=_defined(own_share, samples),
        blocks=tuple(_block_load(samples, window) for window in windows),
        load_1m=_spread(sample.load_1m for sample in samples),
        cpu_mhz=_spread(sample.mhz for sample in samples),
        cpu_celsius=_spread(sample.celsius for sample in samples),
        gpus=tuple(
            _gpu_watch(gpu, [look for look in looks if look.reading.gpu == gpu])
            for gpu in sorted({look.reading.gpu for look in looks})
        ),
    )


def _block_load(samples: Sequence[Sample], window: Window) -> BlockLoad:
    inside = cut(samples, window.started, window.ended)
    loads = [sample.load_1m for sample in inside if sample.load_1m is not None]
    return BlockLoad(
        launch=window.launch,
        block=window.block,
        seconds=window.ended - window.started,
        samples=max(len(inside) - 2, 0),
        foreign_mean=_defined(foreign_share, inside),
        foreign_max=_foreign_max(inside),
        own_mean=_defined(own_share, inside),
        load_1m_max=max(loads, default=None),
    )


def _gpu_watch(gpu: int, looks: Sequence[GpuLook]) -> GpuWatch:
    readings = [look.reading for look in looks]
    reasons = [reason for reading in readings for reason in reading.slowed_by]
    return GpuWatch(
        gpu=gpu,
        sm_mhz=_spread(reading.sm_mhz for reading in readings),
        memory_mhz=_spread(reading.memory_mhz for reading in readings),
        celsius=_spread(reading.celsius for reading in readings),
        watts=_spread(reading.watts for reading in readings),
        slowed_by={reason: reasons.count(reason) for reason in sorted(set(reasons))},
        processes_max=max((len(r.pids) for r in readings if r.pids is not None), default=None),
        foreign_processes_max=max((look.foreign for look in looks if look.foreign is not None), default=None),
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    return Spread(low=min(known), median=statistics.median(known), high=max(known), samples=len(known))


def _foreign_max(samples: Sequence[Sample]) -> float | None:
    shares = (_defined(foreign_share, pair) for pair in pairwise(samples))
    return max((share for share in shares if share is not None), default=None)


def _defined(share: Callable[[Sequence[Sample]], float], samples: Sequence[Sample]) -> float | None:
    try:
        return share(samples)
    except UndefinedMetric:
        return None


def _ends(samples: Sequence[Sample]) -> tuple[Sample, Sample]:
    if len(samples) < 2 or samples[-1].total <= samples[0].total:
        raise UndefinedMetric("load has no value: fewer than two looks with CPU time between them")
    return samples[0], samples[-1]


def _at(samples: Sequence[Sample], moment: float) -> Sample:
    """The counters at a moment between two looks, at an even rate between them."""
    after = next(index for index, sample in enumerate(samples) if sample.at >= moment)
    right = samples[after]
    left = samples[max(after - 1, 0)]
    part = (moment - left.at) / (right.at - left.at) if right.at > left.at else 1.0
    total, busy, own = (
        before + part * (later - before)
        for before, later in ((left.total, right.total), (left.busy, right.busy), (left.own, right.own))
    )
    return Sample(at=moment, total=total, busy=busy, own=own)
