"""A completion server that does nothing but stream: ``python -m harness.load.noop_server``.

Its answers cost next to nothing, so what a client measures on it is the client itself. Prints its
port, and ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys

from aiohttp import web

END = b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\ndata: [DONE]\n\n'


async def _complete(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    count = int(body["max_tokens"])
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for index in range(count):
        reason = "length" if index == count - 1 else None
        choice = {"index": 0, "text": "a", "token_ids": [1], "finish_reason": reason}
        await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
    await response.write(END % count)
    await response.write_eof()
    return response


async def main() -> None:
    """Serve until standard input ends."""
    app = web.Application()
    app.router.add_post("/v1/completions", _complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
