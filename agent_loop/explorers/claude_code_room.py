"""Where Claude Code runs: a room with its worktree, a home of its own, and the gateway's socket.

The SDK starts one program; it is given a script that opens the room and starts Claude Code inside. Nothing
of our environment comes along, though the SDK hands all of it on: the room clears it.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from agent_loop.explorers.claude import MAX_TOKENS
from agent_loop.gateway.starting import Door
from agent_loop.sandbox.profile import Limits, Profile, existing, interpreter_paths
from agent_loop.sandbox.room import MEND, Room, open_room, why_not
from harness.codec import canonical_json
from harness.errors import UsageError
from harness.storage import write_atomic

RELAY = Path(__file__).with_name("claude_code_relay.py")
MEMORY_BYTES = 8 << 30
ETC = ("/etc/ssl", "/etc/ca-certificates", "/etc/nsswitch.conf", "/etc/hosts")


def check_room() -> None:
    """Refuse where there is nothing to keep Claude Code in: Landlock alone would shut the gateway out, too.

    Raises:
        UsageError: no bubblewrap here.
    """
    why = why_not("bubblewrap")
    if why is not None:
        raise UsageError(f"an explorer of kind 'claude-code' needs bubblewrap: {why}; {MEND}")


@contextlib.contextmanager
def launcher(program: Path, worktree: Path, door: Door, model: str) -> Iterator[Path]:
    """A program that is Claude Code in a room; it takes its arguments.

    Args:
        program: the executable of Claude Code.
        worktree: the only folder of ours that it may write.
        door: to the gateway, with a socket.
        model: for everything it asks, its small questions too.

    Raises:
        UsageError: there is no bubblewrap here, or the gateway has no socket.
    """
    check_room()
    if door.socket is None:
        raise UsageError("an explorer of kind 'claude-code' needs a gateway with a socket; none was opened")
    with tempfile.TemporaryDirectory(prefix="claude-code-") as name:
        home = Path(name, "home")
        (home / "config").mkdir(parents=True)
        order = Path(name, "order.json")
        write_atomic(order, canonical_json(_order(program, worktree, door, model, home)))
        order.chmod(0o600)
        profile = _profile(program, worktree, door.socket, home, order)
        with open_room(profile, "bubblewrap") as room:
            script = Path(name, "claude")
            write_atomic(script, _script(room, order))
            script.chmod(0o700)
            yield script


def _order(program: Path, worktree: Path, door: Door, model: str, home: Path) -> Mapping[str, object]:
    """What the relay is told; the environment of Claude Code, all of it."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / "config"),
        "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(MAX_TOKENS),  # the gateway sets aside what this costs
        "DISABLE_AUTOUPDATER": "1",
        "ANTHROPIC_API_KEY": door.token,  # the gateway knows it, and puts the key in its place
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_SMALL_FAST_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "TMPDIR": "/tmp",  # noqa: S108 - a tmpfs of its own
        "LANG": "C.UTF-8",
    }
    return {
        "program": str(program),
        "socket": door.socket,
        "cwd": str(worktree),
        "environment": environment,
    }


def _profile(program: Path, worktree: Path, socket: str, home: Path, order: Path) -> Profile:
    readable = (*interpreter_paths(), str(program), str(RELAY), str(order), str(Path(socket).parent), *ETC)
    return Profile(
        readable=existing(readable),
        writable=(str(worktree), str(home)),
        cwd=str(worktree),
        limits=Limits(seconds=None, memory_bytes=MEMORY_BYTES),
    )


def _script(room: Room, order: Path) -> bytes:
    inner = [str(Path(sys.executable)), "-I", "-S", str(RELAY), str(order)]
    _, entrance = room.cage.entrance()
    lines = ["#!/bin/sh", *(f"export {name}={shlex.quote(value)}" for name, value in entrance.items())]
    lines.append(f'exec {shlex.join(room.words(inner))} "$@"')
    return "\n".join(lines).encode() + b"\n"
