"""What the client itself costs: the same client against a server that does nothing."""

from __future__ import annotations

import subprocess
import sys

from harness.codec import Record
from harness.errors import InvalidRun
from harness.load.generator import drive
from harness.protocols import Clock

TOKENS = 64


class ClientOverhead(Record, frozen=True):
    """Client and no-op server together: an upper bound on what the client adds."""

    concurrency: int
    tokens: int
    microseconds_per_token: float  # wall time over all tokens, one a chunk
    chunks_per_second: float  # what this client can follow at this concurrency


def measure_overhead(clock: Clock, concurrency: int) -> ClientOverhead:
    """Stream one-token chunks from a no-op server in a process of its own.

    Raises:
        InvalidRun: the no-op server did not start.
    """
    server = subprocess.Popen(
        [sys.executable, "-m", "harness.load.noop_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        line = server.stdout.readline() if server.stdout is not None else b""
        if not line.strip().isdigit():
            raise InvalidRun("the no-op server did not start: the client's own cost is unknown")
        url = f"http://127.0.0.1:{int(line)}/v1/completions"
        body = {"prompt": [1], "max_tokens": TOKENS}
        drive(url, [body] * concurrency, clock, concurrency=concurrency)  # opens connections
        started = clock.monotonic_ns()
        replies = drive(url, [body] * (2 * concurrency), clock, concurrency=concurrency)
        took = clock.monotonic_ns() - started
        tokens = sum(len(chunk.token_ids or ()) for reply in replies for chunk in reply.chunks)
    finally:
        if server.stdin is not None:
            server.stdin.close()
        server.wait(timeout=10)
        if server.stdout is not None:
            server.stdout.close()
    if tokens != 2 * concurrency * TOKENS:
        raise InvalidRun(f"the client lost tokens of the no-op server: {tokens} came")
    return ClientOverhead(
        concurrency=concurrency,
        tokens=tokens,
        microseconds_per_token=took / 1e3 / tokens,
        chunks_per_second=tokens * 1e9 / took,
    )
