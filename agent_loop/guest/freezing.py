"""Stop a guest with all that it started, while others are timed: it must not slow them down.

Stopping is by signal, from outside of the guest's process namespace, so it cannot be refused. Work that
a guest has already handed to a GPU is not stopped.
"""

from __future__ import annotations

import contextlib

import psutil


class Freezer:
    """A process and its descendants, stopped and continued together."""

    def __init__(self, pid: int) -> None:
        """Name the process; it runs on."""
        self._root = psutil.Process(pid)
        self._stopped: list[psutil.Process] = []

    def freeze(self) -> None:
        """Stop all of them; those that are born meanwhile, too."""
        known = {process.pid for process in self._stopped}
        with contextlib.suppress(psutil.Error):
            while new := [process for process in self._members() if process.pid not in known]:
                for process in new:
                    with contextlib.suppress(psutil.Error):
                        process.suspend()
                    known.add(process.pid)
                self._stopped += new

    def thaw(self) -> None:
        """Let all of them go on; microseconds, for this is timed."""
        for process in reversed(self._stopped):
            with contextlib.suppress(psutil.Error):
                process.resume()
        self._stopped = []

    def _members(self) -> list[psutil.Process]:
        """Parents before children: a stopped parent has no new child."""
        return [self._root, *self._root.children(recursive=True)]
