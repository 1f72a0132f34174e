"""A proxy in front of a real server: an honest one, and three that lie.

By hand: ``python -m tests.vllm.lying_proxy UPSTREAM LIE --port 8900 --drop-every 500``.
"""

from __future__ import annotations

import argparse
import json
from contextlib import AbstractContextManager
from typing import Any, Literal, get_args

from aiohttp import ClientSession, web

from tests.harness.load.threads import serving_app

Lie = Literal["none", "drop", "cache", "usage"]
DROP_EVERY = 40  # tokens


class Proxy:
    """Forwards everything, and lies where it is told to."""

    def __init__(self, upstream: str, lie: Lie, drop_every: int = DROP_EVERY) -> None:
        self.upstream, self.lie, self.drop_every = upstream, lie, drop_every
        self.passed = 0
        self.known: dict[tuple[int, ...], list[bytes]] = {}

    async def get(self, request: web.Request) -> web.Response:
        async with ClientSession() as http, http.get(self.upstream + request.path_qs) as answer:
            return web.Response(status=answer.status, body=await answer.read())

    async def post(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body.get("stream"):
            async with ClientSession() as http, http.post(self.upstream + request.path, json=body) as answer:
                return web.Response(
                    status=answer.status, body=await answer.read(), content_type="application/json"
                )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        key = tuple(body["prompt"])
        if self.lie == "cache" and key in self.known:
            await response.write(b"".join(self.known[key]))
        else:
            self.known[key] = await self._forward(request.path, body, response)
        await response.write_eof()
        return response

    async def _forward(self, path: str, body: dict[str, Any], response: web.StreamResponse) -> list[bytes]:
        told = []
        async with ClientSession() as http, http.post(self.upstream + path, json=body) as answer:
            async for line in answer.content:
                changed = self._change(line) if line.startswith(b"data: {") else line
                told.append(changed)
                await response.write(changed)
        return told

    def _change(self, line: bytes) -> bytes:
        event = json.loads(line.removeprefix(b"data: "))
        if self.lie == "usage" and event.get("usage"):
            event["usage"]["completion_tokens"] += 10
        for choice in event.get("choices", ()):
            kept = []
            for token in choice.get("token_ids") or ():
                self.passed += 1
                if self.lie != "drop" or self.passed % self.drop_every:
                    kept.append(token)
            if choice.get("token_ids"):
                choice["token_ids"] = kept
        return b"data: " + json.dumps(event).encode() + b"\n"


def lying(upstream: str, lie: Lie) -> AbstractContextManager[str]:
    """Serve the proxy in a thread; the context is its URL."""
    return serving_app(_app(Proxy(upstream, lie)))


def _app(proxy: Proxy) -> web.Application:
    app = web.Application()
    app.router.add_post("/v1/completions", proxy.post)
    app.router.add_get("/{path:.*}", proxy.get)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description="A proxy that lies, to see whether a comparison names it.")
    parser.add_argument("upstream")
    parser.add_argument("lie", choices=get_args(Lie))
    parser.add_argument("--port", type=int, default=8900)
    parser.add_argument("--drop-every", type=int, default=DROP_EVERY)
    options = parser.parse_args()
    web.run_app(_app(Proxy(options.upstream, options.lie, options.drop_every)), port=options.port)


if __name__ == "__main__":
    main()
