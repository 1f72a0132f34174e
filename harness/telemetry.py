"""Watches the machine while arms run: who else uses the CPU, clocks, temperatures, GPU neighbours.

A thread looks about twice a second and keeps counters; `harness.telemetry_summary` says what they
mean. Looking must not disturb what it looks at: where a look is dear, looks become rare.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import msgspec
import psutil

from harness.nvml import GpuReading, open_nvml
from harness.process_tree import ProcessTree
from harness.telemetry_summary import Effort, GpuLook, Sample, Window, foreign_between, summarise

T = TypeVar("T")

PERIOD_SECONDS = 0.5
BUDGET = 0.008  # of one core: after a look that took c CPU seconds, the next is c / BUDGET later
SENSOR_EVERY = 4  # looks; reading clocks, temperatures and GPUs wakes what sleeps, so it is done seldom
# Where Linux drivers tell the temperature of the CPU itself.
CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal")


class Probe(Protocol):
    """Takes one sample."""

    def __call__(self, at: float, *, sensors: bool) -> Sample:
        """Look at the machine; `sensors` asks for clocks, temperatures and GPUs too."""
        ...

    def close(self) -> None:
        """Let go of what was opened."""
        ...


class Telemetry:
    """Samples the machine from `with` to its end."""

    def __init__(
        self,
        now: Callable[[], float] = time.time,
        period_seconds: float = PERIOD_SECONDS,
        probe: Callable[[], Probe] | None = None,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Prepare; nothing runs and nothing is opened yet.

        Args:
            now: clock, seconds since the epoch; the one that the windows are taken by.
            period_seconds: shortest time between two looks.
            probe: opens what looks; None looks at this machine.
            cpu_clock: CPU seconds of the thread that asks.
        """
        self._now = now
        self._period = period_seconds
        self._open: Callable[[], Probe] = MachineProbe if probe is None else probe
        self._cpu_clock = cpu_clock
        self._probe: Probe | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._spent = 0.0
        self._failed = 0
        self._problem: str | None = None
        self.samples: list[Sample] = []

    def __enter__(self) -> Self:
        """Take the first look and go on looking in a thread."""
        self._probe = self._open()
        self._stop.clear()
        spent = self._look(self._probe)
        self._thread = threading.Thread(
            target=self._watch, args=(self._probe, spent), name="telemetry", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take a last look and stop."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._probe is not None:
            self._look(self._probe)
            self._probe.close()

    def foreign_between(self, started: float, ended: float) -> float | None:
        """Mean share of the CPU that others used between two times; None if it was not watched.

        Args:
            started: seconds since the epoch.
            ended: the same; after `started`.
        """
        return foreign_between(self.samples, started, ended)

    def foreign_by_block(self, windows: Sequence[Window]) -> dict[str, float]:
        """The same for each window that was watched, by the name "launch L block B"."""
        shares = {
            f"launch {window.launch} block {window.block}": self.foreign_between(window.started, window.ended)
            for window in windows
        }
        return {name: share for name, share in shares.items() if share is not None}

    def summary(self, windows: Sequence[Window] = ()) -> dict[str, Any]:
        """Plain `TelemetrySummary` for the report.

        Args:
            windows: of the blocks measured while this looked.
        """
        effort = Effort(self._period, self._spent, self._failed, self._problem)
        plain: dict[str, Any] = msgspec.to_builtins(
            summarise(self.samples, windows, effort, psutil.cpu_count())
        )
        return plain

    def _watch(self, probe: Probe, spent: float) -> None:
        while not self._stop.wait(max(self._period, spent / BUDGET)):
            spent = self._look(probe)

    def _look(self, probe: Probe) -> float:
        """CPU seconds that the look took. One that fails is left out; the next goes on."""
        before = self._cpu_clock()
        try:
            self.samples.append(probe(self._now(), sensors=len(self.samples) % SENSOR_EVERY == 0))
        except (psutil.Error, OSError, ValueError, RuntimeError) as error:
            self._failed += 1
            self._problem = type(error).__name__
        spent = self._cpu_clock() - before
        self._spent += spent
        return spent


class MachineProbe:
    """Looks at this machine through psutil and, where there is one, NVML."""

    def __init__(self, root: psutil.Process | None = None) -> None:
        """Open NVML if it is there.

        Args:
            root: top of the run's own processes; None is this process.
        """
        self._nvml = open_nvml()
        self._tree = ProcessTree(root)

    def __call__(self, at: float, *, sensors: bool) -> Sample:
        """See `Probe`.

        Raises:
            psutil.Error, OSError, ValueError, RuntimeError: the system does not tell its CPU times.
        """
        times = psutil.cpu_times()
        # `user` and `nice` already hold the guests' time.
        busy = sum(getattr(times, n, 0.0) for n in ("user", "nice", "system", "irq", "softirq", "steal"))
        readings = self._nvml.readings() if sensors and self._nvml is not None else ()
        return Sample(
            at=at,
            total=busy + times.idle + getattr(times, "iowait", 0.0),
            busy=busy,
            own=self._tree.look(),
            load_1m=told(lambda: psutil.getloadavg()[0]),
            mhz=told(_mhz) if sensors else None,
            celsius=told(_celsius) if sensors else None,
            gpus=tuple(GpuLook(r, foreign_on(r, self._tree.pids)) for r in readings),
        )

    def close(self) -> None:
        """See `Probe`."""
        if self._nvml is not None:
            self._nvml.close()


def told(sensor: Callable[[], T | None]) -> T | None:
    """What a sensor tells; None where there is none, as in most containers."""
    try:
        return sensor()
    except (AttributeError, OSError, ValueError, RuntimeError):
        return None


def foreign_on(reading: GpuReading, own: frozenset[int]) -> int | None:
    """Compute processes that are not ours; None when the driver counts in another namespace."""
    if reading.pids is None or not all(map(psutil.pid_exists, reading.pids)):
        return None
    return sum(pid not in own for pid in reading.pids)


def _mhz() -> float | None:
    found = psutil.cpu_freq()
    return None if found is None else found.current or None


def _celsius() -> float | None:
    sensors = psutil.sensors_temperatures()
    return max((s.current for name in CPU_SENSORS for s in sensors.get(name, ())), default=None)
