"""Tries to get out of the room it is started in, and tells what it reached. A script; standard library only.

Reads one JSON order on standard input: `file` (outside, readable to who started the room), `host` (an
address that is nobody's), `port` (a listener on the host's loopback), `socket` (a UNIX socket outside),
`abstract` (name of an abstract socket), `parent` (pid outside), `secret` (a text that the parent's
environment holds), `gpu` (whether to multiply matrices by CUDA), `control` (this is outside: change
nothing). Answers one JSON object: for each attempt what came of it; "" is nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> int:
    """Make every attempt, whatever the one before did."""
    order = json.loads(sys.stdin.read())
    attempts: dict[str, Callable[[], str]] = {
        "network": lambda: _connect(socket.AF_INET, (order["host"], 53)),
        "loopback": lambda: _connect(socket.AF_INET, ("127.0.0.1", order["port"])),
        "unix_socket": lambda: _connect(socket.AF_UNIX, order["socket"]),
        "abstract_socket": lambda: _connect(socket.AF_UNIX, "\0" + order["abstract"]),
        "file": lambda: Path(order["file"]).read_text(),
        "other_environments": lambda: _environments(order["secret"]),
        "own_environment": lambda: order["secret"] if order["secret"] in str(dict(os.environ)) else "",
        "descriptors": _descriptors,
        "system_write": lambda: _write("/usr", order["control"]),
        "root_write": lambda: _write("/", order["control"]),
        "signal": lambda: _signal(order["parent"]),
        "trace": lambda: _trace(order["parent"]),
        "identity": lambda: "" if os.getuid() == 65534 else f"uid {os.getuid()}",
    }
    found: dict[str, Any] = {}
    for name, attempt in attempts.items():
        try:
            found[name] = attempt()
        except OSError:
            found[name] = ""
    if order.get("gpu"):
        found["gpu"] = _gpu()
    print(json.dumps(found))
    return 0


def _connect(family: int, address: Any) -> str:
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(2.0)
        one.connect(address)
        return "connected"


def _environments(secret: str) -> str:
    """Look for the secret in the environment of every process that can be seen."""
    for place in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if secret.encode() in place.read_bytes():
                return f"in {place}"
    return ""


def _descriptors() -> str:
    found = [number for number in range(3, 1024) if _is_open(number)]
    return "" if not found else f"open: {found}"


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _write(folder: str, control: bool) -> str:
    """Make a file; the control outside only asks whether it could."""
    if control:
        return "writable" if os.access(folder, os.W_OK) else ""
    Path(folder, "intruder").write_text("x")
    return "written"


def _signal(pid: int) -> str:
    """The parent outside, by the number it has there; pids of the room are small."""
    if pid < 100:
        return ""
    os.kill(pid, 0)
    return "reached"


def _trace(pid: int) -> str:
    attach = 16
    libc = ctypes.CDLL(None, use_errno=True)
    return "attached" if libc.ptrace(attach, pid, 0, 0) == 0 else ""


def _gpu() -> str:
    try:
        import torch  # noqa: PLC0415 - only where a GPU was asked for

        square = torch.ones(64, 64, device="cuda")
        right = bool((square @ square == 64).all())
        return f"{torch.cuda.get_device_name()}, {torch.cuda.device_count()} seen, right: {right}"
    except Exception as error:  # noqa: BLE001 - the answer is what went wrong
        return f"failed: {type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
