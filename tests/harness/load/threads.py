"""Runs an aiohttp application in a thread for the length of a block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


@contextmanager
def serving_app(app: web.Application) -> Iterator[str]:
    """Serve on a free port; yields the base URL."""
    ready = threading.Event()
    stop = asyncio.Event()
    address: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        address.append(f"http://{host}:{port}")
        loops.append(asyncio.get_running_loop())
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield address[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(10)
