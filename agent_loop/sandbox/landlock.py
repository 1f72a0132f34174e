"""The second mechanism: namespaces of util-linux's `unshare`, Landlock and a filter inside. Pure.

Weaker than bubblewrap where it says so in the README: the names of files outside and the command lines of
other processes can be seen, and there is no file system of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_loop.sandbox.profile import ETC, NOBODY, SYSTEM, Profile, existing, gpu_nodes

PROGRAM = "unshare"
SCRIPT = Path(__file__).with_name("confine.py")
DEVICES = ("null", "zero", "full", "random", "urandom")


def command(profile: Profile, argv: Sequence[str], scratch: str, program: str = PROGRAM) -> list[str]:
    """What to start, with `argv` inside; `scratch` stands in for /tmp.

    Raises:
        UsageError: a GPU of the profile is not there.
    """
    ids = [f"--map-user={NOBODY}", f"--map-group={NOBODY}"]
    spaces = ["--user", *ids, "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child=KILL"]
    launcher = [str(Path(sys.executable).resolve()), "-I", "-S", str(SCRIPT)]
    return [program, *spaces, "--", *launcher, json.dumps(order(profile, scratch)), *argv]


def order(profile: Profile, scratch: str) -> dict[str, object]:
    """What `confine.py` is told."""
    nodes = [f"/dev/{name}" for name in DEVICES] + list(gpu_nodes(profile.gpus))
    system = (*SYSTEM, *(f"/etc/{name}" for name in ETC), "/proc", *(("/sys",) if profile.gpus else ()))
    return {
        "readable": existing((*system, *profile.readable)),
        "writable": existing((*nodes, *profile.writable, scratch)),
        "environment": {"TMPDIR": scratch, **profile.environment},
        "cwd": scratch if profile.cwd == "/tmp" else profile.cwd,  # noqa: S108
    }
