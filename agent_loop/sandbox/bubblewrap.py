"""The command line of bubblewrap for a profile. Pure but for looking which system folders there are.

A new user, mount, pid, network, ipc, uts and cgroup namespace; a root made of read-only binds, which is
itself read-only; uid 65534 without capabilities; no environment; a new session; dead with its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent_loop.sandbox.profile import ETC, NOBODY, SYSTEM, Profile, existing, gpu_nodes, within

PROGRAM = "bwrap"


def command(profile: Profile, argv: Sequence[str], program: str = PROGRAM) -> list[str]:
    """What to start, with `argv` inside.

    Raises:
        UsageError: a GPU of the profile is not there.
    """
    return [program, *_namespaces(), *_files(profile), *_environment(profile), "--", *argv]


def _namespaces() -> list[str]:
    ids = ["--uid", str(NOBODY), "--gid", str(NOBODY)]
    ends = ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    return ["--unshare-all", *ids, "--hostname", "room", *ends]


def _files(profile: Profile) -> list[str]:
    words: list[str] = []
    for path in SYSTEM:
        place = Path(path)
        if place.is_symlink():
            words += ["--symlink", str(place.readlink()), path]
        elif place.is_dir():
            words += ["--ro-bind", path, path]
    for path in existing(f"/etc/{name}" for name in ETC):
        words += ["--ro-bind", path, path]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--tmpfs", "/tmp"]  # noqa: S108
    for node in gpu_nodes(profile.gpus):
        words += ["--dev-bind", node, node]
    if profile.gpus:
        words += ["--ro-bind", "/sys", "/sys"]
    writable = existing(profile.writable)
    for path in existing((*profile.readable, *writable)):
        words += ["--bind" if path in writable else "--ro-bind", path, path]
    opened = (*profile.readable, *profile.writable, *SYSTEM, "/tmp")  # noqa: S108
    if not within(profile.cwd, opened):
        words += ["--dir", profile.cwd]
    return [*words, "--remount-ro", "/", "--chdir", profile.cwd]


def _environment(profile: Profile) -> list[str]:
    words = ["--clearenv"]
    for name, value in sorted(profile.environment.items()):
        words += ["--setenv", name, value]
    return words
