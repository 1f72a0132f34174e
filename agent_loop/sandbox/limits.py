"""Limits of a sandboxed program: resource limits always, a cgroup where one can be made.

A cgroup holds all processes of the room together; resource limits hold each process alone. Which of
both is there is told by `Cage.held`, so that no report claims a limit that nobody holds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_loop.sandbox.profile import Profile

CGROUPS = Path("/sys/fs/cgroup")
# v1 has a folder for each controller, v2 one for all: (controller, file of the limit, its name in v2).
CONTROLLED = (("memory", "memory.limit_in_bytes", "memory.max"), ("pids", "pids.max", "pids.max"))
JOIN = 'for f in $SP_CAGE; do echo $$ > "$f" || exit 125; done; unset SP_CAGE; exec "$@"'
LEAVE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Cage:
    """Cgroup folders made for one program; empty where none could be made."""

    folders: tuple[Path, ...] = ()
    held: frozenset[str] = frozenset()  # of "memory", "pids"

    def entrance(self) -> tuple[list[str], Mapping[str, str]]:
        """Words that start a program inside, and the environment that they need."""
        if not self.folders:
            return [], {}
        files = " ".join(str(folder / "cgroup.procs") for folder in self.folders)
        return ["/bin/sh", "-c", JOIN, "cage"], {"SP_CAGE": files}

    def kill(self) -> None:
        """End whoever is left inside."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(int(pid), signal.SIGKILL)


@contextlib.contextmanager
def cage(profile: Profile, root: Path = CGROUPS) -> Iterator[Cage]:
    """A cgroup with the profile's limits, removed at the end with all that is in it."""
    made = _make(profile, root)
    try:
        yield made
    finally:
        made.kill()
        _remove(made)


def rlimit_words(profile: Profile, held: frozenset[str]) -> list[str]:
    """Start of a command line that sets the resource limits.

    The address space is limited only where no cgroup holds the memory and no GPU is there: CUDA
    reserves far more addresses than memory.
    """
    limits = profile.limits
    words = ["prlimit", "--core=0"]
    if limits.cpu_seconds is not None:
        words.append(f"--cpu={limits.cpu_seconds}")
    if limits.file_bytes is not None:
        words.append(f"--fsize={limits.file_bytes}")
    if limits.open_files is not None:
        words.append(f"--nofile={limits.open_files}")
    if limits.memory_bytes is not None and "memory" not in held and not profile.gpus:
        words.append(f"--as={limits.memory_bytes}")
    if limits.processes is not None and os.getuid() != 0:
        words.append(f"--nproc={limits.processes}")
    return words


def _make(profile: Profile, root: Path) -> Cage:
    limits = {"memory": profile.limits.memory_bytes, "pids": profile.limits.processes}
    unified = (root / "cgroup.controllers").is_file()
    folders: list[Path] = []
    held: set[str] = set()
    for controller, v1, v2 in CONTROLLED:
        limit = limits[controller]
        if limit is None:
            continue
        try:
            if unified and folders:
                folder = folders[0]
            else:
                parent = root if unified else root / controller
                if not (parent / "cgroup.procs").is_file():
                    continue
                folder = Path(tempfile.mkdtemp(prefix="specpilot-", dir=parent))
                folders.append(folder)
            (folder / (v2 if unified else v1)).write_text(str(int(limit)))
            held.add(controller)
        except OSError:
            continue  # not ours to make; told by what is not in `held`
    return Cage(tuple(folders), frozenset(held))


def _remove(made: Cage) -> None:
    end = time.monotonic() + LEAVE_SECONDS
    for folder in made.folders:
        while True:
            try:
                folder.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:  # whoever was killed has not left yet
                if time.monotonic() > end:
                    break
                time.sleep(0.01)
