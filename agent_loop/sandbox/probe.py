"""What holds on this machine, found by trying to get out: see `intruder`.

Every attempt is made from outside first, where it must succeed: an attempt that cannot succeed anywhere
would prove nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from agent_loop.sandbox.profile import Limits, Profile, interpreter_paths
from agent_loop.sandbox.room import MECHANISMS, Mechanism, open_room, why_not
from harness.codec import Record

INTRUDER = Path(__file__).with_name("intruder.py")
NOWHERE = "192.0.2.1"  # documentation address (RFC 5737): nobody is disturbed where a network is
OUTLIVE = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\ntime.sleep(60)"


class Finding(Record, frozen=True):
    """What one mechanism keeps in on this machine."""

    mechanism: Mechanism
    why_not: str | None  # None: it works
    escaped: dict[str, str] = {}  # attempts that succeeded; must be empty
    controls: dict[str, str] = {}  # the same attempts outside
    held: tuple[str, ...] = ()  # limits over all processes together
    outlived: bool | None = None  # whether a process in a session of its own outlived the limit
    gpu: str | None = None  # what CUDA said inside; None: not asked

    @property
    def closed(self) -> bool:
        """Whether candidates may be run in it."""
        return self.why_not is None and not self.escaped and not self.outlived


def probe(gpus: tuple[int, ...] = ()) -> list[Finding]:
    """Try every mechanism, best first.

    Raises:
        UsageError: a GPU is not there.
    """
    return [probe_one(mechanism, gpus) for mechanism in MECHANISMS]


def probe_one(mechanism: Mechanism, gpus: tuple[int, ...] = ()) -> Finding:
    """Try to get out of a room of one mechanism."""
    why = why_not(mechanism)
    if why is not None:
        return Finding(mechanism=mechanism, why_not=why)
    limits = Limits(seconds=120.0 if gpus else 30.0)
    readable = (*interpreter_paths(), str(INTRUDER))
    profile = Profile(readable=readable, gpus=gpus, limits=limits)
    with outside() as order:
        words = [sys.executable, *([] if gpus else ["-I", "-S"]), str(INTRUDER)]
        asked = json.dumps({**order, "gpu": bool(gpus), "control": False}).encode()
        with open_room(profile, mechanism) as room:
            done = room.run(words, asked)
            held = tuple(sorted(room.held))
        control = subprocess.run(
            [sys.executable, "-I", "-S", str(INTRUDER)],
            input=json.dumps({**order, "control": True}).encode(),
            capture_output=True,
            check=True,
            env=os.environ | {"SP_PROBE": str(order["secret"])},
            pass_fds=(int(str(order["descriptor"])),),
        )
    if done.exit_code != 0:
        return Finding(mechanism=mechanism, why_not=done.stderr.decode(errors="replace")[-300:])
    answers: dict[str, str] = json.loads(done.stdout)
    gpu = answers.pop("gpu", None)
    return Finding(
        mechanism=mechanism,
        why_not=None,
        escaped={name: text for name, text in answers.items() if text},
        controls={name: text[:60] for name, text in json.loads(control.stdout).items() if text},
        held=held,
        outlived=_outlives(mechanism, profile),
        gpu=gpu,
    )


@contextlib.contextmanager
def outside() -> Iterator[Mapping[str, object]]:
    """Things that the intruder must not reach: a file, listeners, a secret in our environment."""
    secret = secrets.token_hex(16)
    with (
        tempfile.TemporaryDirectory(prefix="outside-") as name,
        socket.create_server(("127.0.0.1", 0)) as loopback,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        file = Path(name) / "oracle.jsonl"
        file.write_text(secret)
        unix.bind(str(Path(name) / "socket"))
        unix.listen()
        abstract.bind(f"\0specpilot-{secret}")
        abstract.listen()
        holder = _holder(secret)
        try:
            yield {
                "host": NOWHERE,
                "port": loopback.getsockname()[1],
                "socket": str(Path(name) / "socket"),
                "abstract": f"specpilot-{secret}",
                "file": str(file),
                "secret": secret,
                "parent": holder.pid,
                "descriptor": loopback.fileno(),
            }
        finally:
            holder.kill()
            holder.wait()


def _holder(secret: str) -> subprocess.Popen[bytes]:
    """A process outside that has the secret in its environment."""
    return subprocess.Popen(["sleep", "300"], env=os.environ | {"SP_PROBE": secret}, stdin=subprocess.DEVNULL)


def _outlives(mechanism: Mechanism, profile: Profile) -> bool:
    """Whether a forked process in its own session is still there after the limit; found by its folder."""
    with tempfile.TemporaryDirectory(prefix="room-life-") as name:
        shorter = msgspec.structs.replace(profile.limits, seconds=1.5)
        short = msgspec.structs.replace(profile, writable=(name,), cwd=name, gpus=(), limits=shorter)
        with open_room(short, mechanism) as room:
            done = room.run([sys.executable, "-I", "-S", "-c", OUTLIVE])
        time.sleep(0.1)
        return not done.timed_out or bool(inhabitants(Path(name)))


def inhabitants(folder: Path) -> list[int]:
    """Processes whose working folder is this one, in whatever namespace they are."""
    found = []
    wanted = folder.stat()
    for place in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if os.path.samestat(place.stat(), wanted):
                found.append(int(place.parent.name))
    return found
