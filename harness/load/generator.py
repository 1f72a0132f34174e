"""Sends a request set at constant concurrency or at fixed times, and waits for all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from harness.load.client import Reply, exchange
from harness.protocols import Clock


def drive(
    url: str,
    bodies: Sequence[dict[str, Any]],
    clock: Clock,
    *,
    concurrency: int,
    arrivals: Sequence[float] | None = None,
    timeout_s: float = 600.0,
    on_done: Callable[[], None] | None = None,
) -> list[Reply]:
    """Run the whole set against one server; results in the order of `bodies`.

    Args:
        url: of the completions endpoint.
        bodies: one JSON body per request.
        clock: of the measurer.
        concurrency: requests in flight at any time (closed loop); with `arrivals`, the most.
        arrivals: send times in seconds from the start (open loop): a request is sent when its time
            has come, whatever the server is doing.
        timeout_s: a request that takes longer has failed.
        on_done: called after every request.
    """
    return asyncio.run(_drive(url, bodies, clock, concurrency, arrivals, timeout_s, on_done))


async def _drive(
    url: str,
    bodies: Sequence[dict[str, Any]],
    clock: Clock,
    concurrency: int,
    arrivals: Sequence[float] | None,
    timeout_s: float,
    on_done: Callable[[], None] | None,
) -> list[Reply]:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        origin = clock.monotonic_ns()
        places = asyncio.Semaphore(concurrency)

        async def one(index: int) -> Reply:
            if arrivals is not None:
                await asyncio.sleep(max(0.0, arrivals[index] - (clock.monotonic_ns() - origin) / 1e9))
            async with places:
                result = await exchange(http, url, bodies[index], clock, origin)
            if on_done is not None:
                on_done()
            return result

        return list(await asyncio.gather(*(one(index) for index in range(len(bodies)))))
