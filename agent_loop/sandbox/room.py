"""A room that programs are started in; the only door to both mechanisms.

    with open_room(profile) as room:
        done = room.run(["python", "candidate.py"])

A program gets no descriptor but its three standard ones and no variable but the profile's. When its time
is over, or the room closes, it ends with everything it started.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Literal

from agent_loop.sandbox import bubblewrap, landlock
from agent_loop.sandbox.limits import Cage, cage, rlimit_words
from agent_loop.sandbox.profile import Limits, Profile
from harness.errors import UsageError

Mechanism = Literal["bubblewrap", "landlock"]
MECHANISMS: tuple[Mechanism, ...] = ("bubblewrap", "landlock")
MEND = "install bubblewrap (Debian: apt-get install bubblewrap) and allow unprivileged user namespaces"
TRIAL_SECONDS = 20.0
OUTSIDE = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # of the launcher; the program does not see it
BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that has ended."""

    exit_code: int  # negative: the signal that ended it
    timed_out: bool
    stdout: bytes  # up to `Limits.output_bytes`
    stderr: bytes
    seconds: float  # wall clock


@dataclass(slots=True)
class Room:
    """See the module; made by `open_room`."""

    profile: Profile
    mechanism: Mechanism
    cage: Cage
    scratch: str
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def held(self) -> frozenset[str]:
        """Limits that hold all processes together: of "memory", "pids"."""
        return self.cage.held

    def words(self, argv: Sequence[str]) -> list[str]:
        """The whole command line outside."""
        entrance, _ = self.cage.entrance()
        if self.mechanism == "bubblewrap":
            inner = bubblewrap.command(self.profile, argv)
        else:
            inner = landlock.command(self.profile, argv, self.scratch)
        return [*entrance, *rlimit_words(self.profile, self.held), *inner]

    def start(self, argv: Sequence[str], **pipes: int | IO[Any] | None) -> subprocess.Popen[bytes]:
        """Start a program; the caller speaks to it and ends it with `end`.

        Args:
            argv: program and arguments, as seen inside.
            **pipes: `stdin`, `stdout`, `stderr` of `subprocess.Popen`; none given means /dev/null.
        """
        _, environment = self.cage.entrance()
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        streams |= pipes
        program: subprocess.Popen[bytes] = subprocess.Popen(
            self.words(argv),
            env=OUTSIDE | dict(environment),
            close_fds=True,
            start_new_session=True,
            cwd="/",
            stdin=streams["stdin"],
            stdout=streams["stdout"],
            stderr=streams["stderr"],
        )
        self._started.append(program)
        return program

    def end(self, program: subprocess.Popen[bytes]) -> None:
        """End a program with everything it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()

    def run(self, argv: Sequence[str], stdin: bytes = b"") -> Finished:
        """Run a program to its end, or to the end of its time."""
        began = time.monotonic()
        program = self.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        most = self.profile.limits.output_bytes
        kept: dict[str, bytes] = {}
        readers = [
            threading.Thread(target=_keep, args=(getattr(program, name), most, kept, name), daemon=True)
            for name in ("stdout", "stderr")
        ]
        writer = threading.Thread(target=_feed, args=(program.stdin, stdin), daemon=True)
        for thread in (*readers, writer):
            thread.start()
        timed_out = False
        try:
            program.wait(timeout=self.profile.limits.seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            self.end(program)
        for thread in (*readers, writer):
            thread.join()
        code = program.returncode
        found = (kept["stdout"], kept["stderr"])
        return Finished(code, timed_out, *found, time.monotonic() - began)


@contextlib.contextmanager
def open_room(profile: Profile, mechanism: Mechanism | None = None) -> Iterator[Room]:
    """A room with a profile; at the end nothing in it is left alive.

    Args:
        profile: what programs may have.
        mechanism: bubblewrap or Landlock; None takes the strongest that works here.

    Raises:
        UsageError: none works here, so nothing may be started; or a GPU is not there.
    """
    chosen = require() if mechanism is None else mechanism
    with tempfile.TemporaryDirectory(prefix="room-") as scratch, cage(profile) as made:
        room = Room(profile, chosen, made, scratch)
        try:
            yield room
        finally:
            for program in room._started:
                room.end(program)


def require() -> Mechanism:
    """The strongest mechanism that works here.

    Raises:
        UsageError: none does. There is no fallback: code that is not ours is then not run at all.
    """
    reasons = []
    for mechanism in MECHANISMS:
        why = why_not(mechanism)
        if why is None:
            return mechanism
        reasons.append(f"{mechanism}: {why}")
    raise UsageError(f"no sandbox works here ({'; '.join(reasons)}), so no candidate's code is run; {MEND}")


@functools.cache
def why_not(mechanism: Mechanism) -> str | None:
    """Why a mechanism cannot be used here, found by using it; None if it can."""
    program = bubblewrap.PROGRAM if mechanism == "bubblewrap" else landlock.PROGRAM
    for needed in (program, "prlimit"):
        if shutil.which(needed, path=OUTSIDE["PATH"]) is None:
            return f"no program `{needed}`"
    with open_room(Profile(limits=Limits(seconds=TRIAL_SECONDS)), mechanism) as room:
        done = room.run(["/bin/sh", "-c", "test $(id -u) = 65534"])
    if done.exit_code == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return said[-1][:200] if said else f"a first program ended with code {done.exit_code}"


def _keep(pipe: IO[bytes], most: int, kept: dict[str, bytes], name: str) -> None:
    """Read a pipe to its end, keeping the beginning."""
    parts: list[bytes] = []
    left = most
    with pipe:
        while block := pipe.read(BLOCK):
            parts.append(block[:left])
            left -= len(parts[-1])
    kept[name] = b"".join(parts)


def _feed(pipe: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(data)
