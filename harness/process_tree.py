"""CPU time of a process and all its descendants, though they come and go between two looks.

The system adds up what an ended process used in the parent that waited for it. So a child that is
born and ends between two looks is not lost, and one that was seen before it ended must not be
counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import psutil


class ProcessId(NamedTuple):
    """A process that is never confused with a later one of the same number."""

    pid: int
    started: float  # seconds since the epoch


class ProcessTimes(NamedTuple):
    """CPU seconds of one process at one moment."""

    key: ProcessId
    parent: int  # pid
    used: float  # by itself, all its threads
    waited: float  # by its ended descendants that were waited for


class TreeClock:
    """CPU seconds of a tree since the first look; never runs backwards."""

    def __init__(self) -> None:
        """Start at the first look."""
        self._before: dict[ProcessId, ProcessTimes] | None = None
        self._owed: dict[ProcessId, float] = {}
        self._count = 0.0

    def add(self, readings: Iterable[ProcessTimes]) -> float:
        """Take one look at the living processes of the tree, give the count.

        Parents must have been read before their children. What a process used after the last look
        that saw it is lost if nobody waits for it.
        """
        now = {reading.key: reading for reading in readings}
        if self._before is not None:
            self._count += self._gained(self._before, now)
        self._before = now
        return self._count

    def _gained(
        self, before: Mapping[ProcessId, ProcessTimes], now: Mapping[ProcessId, ProcessTimes]
    ) -> float:
        handed_on = _handed_on(before, now)
        owed: dict[ProcessId, float] = {}
        gained = 0.0
        for key, reading in now.items():
            earlier = before.get(key)
            used = reading.used - (0.0 if earlier is None else earlier.used)
            waited = reading.waited - (0.0 if earlier is None else earlier.waited)
            counted = handed_on.get(key, 0.0) + self._owed.get(key, 0.0)
            gained += max(used, 0.0) + max(waited - counted, 0.0)
            # A child that ended after its parent was read shows up there at the next look, or never.
            missing = min(counted - waited, handed_on.get(key, 0.0))
            if missing > 0.0:
                owed[key] = missing
        self._owed = owed
        return gained


class ProcessTree:
    """Looks at a process and its descendants, orphans included."""

    def __init__(self, root: psutil.Process | None = None) -> None:
        """Prepare.

        Args:
            root: top of the tree; None is this process.
        """
        self._root = psutil.Process() if root is None else root
        self._clock = TreeClock()
        self._known: tuple[psutil.Process, ...] = ()
        self.pids: frozenset[int] = frozenset()  # at the last look

    def look(self) -> float:
        """CPU seconds that the tree used since the first look, which gives 0.

        Raises:
            psutil.Error: the root is gone.
        """
        self._known = self._members()
        self.pids = frozenset(process.pid for process in self._known)
        readings = map(_read, self._known)
        return self._clock.add(reading for reading in readings if reading is not None)

    def _members(self) -> tuple[psutil.Process, ...]:
        """Parents before children. Who was a member stays one, also when its parent has ended."""
        found = dict.fromkeys((self._root, *self._root.children(recursive=True)))
        for process in self._known:
            if process not in found and process.is_running():
                found[process] = None
                found.update(dict.fromkeys(_children(process)))
        return tuple(found)


def _handed_on(
    before: Mapping[ProcessId, ProcessTimes], now: Mapping[ProcessId, ProcessTimes]
) -> dict[ProcessId, float]:
    """What is already counted of processes that have ended, by the nearest ancestor that lives."""
    by_pid = {key.pid: reading for key, reading in before.items()}
    total: dict[ProcessId, float] = {}
    for key, reading in before.items():
        if key in now:
            continue
        ancestor = by_pid.get(reading.parent)
        while ancestor is not None and ancestor.key not in now:
            ancestor = by_pid.get(ancestor.parent)
        if ancestor is not None:
            total[ancestor.key] = total.get(ancestor.key, 0.0) + reading.used + reading.waited
    return total


def _read(process: psutil.Process) -> ProcessTimes | None:
    """None when it has just ended."""
    try:
        with process.oneshot():
            times = process.cpu_times()
            key = ProcessId(process.pid, process.create_time())
            return ProcessTimes(key, process.ppid(), times[0] + times[1], times[2] + times[3])
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []
