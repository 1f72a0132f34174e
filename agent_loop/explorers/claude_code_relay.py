"""The way out of the room: a loopback port that leads to the gateway's socket, and Claude Code behind it.

`python -I -S claude_code_relay.py ORDER.json ARGUMENT...`, inside the room; standard library only. ORDER
holds `program`, `environment`, `socket` and `cwd`. The token is in that file and in no command line.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

BLOCK = 1 << 16


def main(arguments: list[str]) -> int:
    """Serve the port until the program has ended; its exit code."""
    order = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        base = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.getsockname()[1]}"}
        threading.Thread(target=_accept, args=(server, order["socket"]), daemon=True).start()
        words = [order["program"], *arguments[1:]]
        return subprocess.call(words, env=order["environment"] | base, cwd=order["cwd"])


def _accept(server: socket.socket, gateway: str) -> None:
    with contextlib.suppress(OSError):
        while True:
            near, _ = server.accept()
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(gateway)
            except OSError:
                near.close()
                far.close()
                continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Pass on what comes, and then its end."""
    with contextlib.suppress(OSError):
        while block := one.recv(BLOCK):
            other.sendall(block)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
