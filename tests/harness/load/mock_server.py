"""A completion server with a script: chunking, stalls, cuts, refusals, lies. Runs in a thread."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.harness.load.request_fields import COMMON
from tests.harness.load.threads import serving_app

FIELDS = (*COMMON, "add_special_tokens", "cache_salt", "prompt_logprobs")


@dataclass
class Script:
    """How the server behaves."""

    per_chunk: int = 1  # tokens an event
    events_per_write: int = 1  # events glued into one network write
    gap_s: float = 0.0  # before every write
    stall_after: int | None = None  # tokens, then one long gap of `stall_s`
    stall_s: float = 0.0
    cut_after: int | None = None  # tokens, then the connection is closed
    split_writes: bool = False  # cut every event in the middle of its bytes
    refuse_first: int = 0  # requests answered 429 before one is served
    retry_after: str | None = "0.01"
    status: int = 200
    bad_json: bool = False
    usage_factor: float = 1.0
    drop_every: int | None = None  # leaves out every n-th token of an answer
    give_ids: bool = True
    crlf: bool = False
    fields: tuple[str, ...] = FIELDS
    bodies: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    refused: int = 0


SCRIPT = web.AppKey("script", Script)


def tokens_for(body: dict[str, Any]) -> list[int]:
    """The honest answer: a function of the prompt."""
    return [100 + (sum(body["prompt"]) * 31 + n * 7) % 97 for n in range(body["max_tokens"])]


def text_of(token: int) -> str:
    return chr(ord("A") + token % 26) + " "


async def _complete(request: web.Request) -> web.StreamResponse:
    script = request.app[SCRIPT]
    body = await request.json()
    if script.refused < script.refuse_first:
        script.refused += 1
        headers = {} if script.retry_after is None else {"Retry-After": script.retry_after}
        return web.Response(status=429, headers=headers)
    script.bodies.append(body)
    if script.status != 200:
        return web.Response(status=script.status, text="engine is dead")
    script.in_flight += 1
    script.most_in_flight = max(script.most_in_flight, script.in_flight)
    try:
        return await _stream(request, script, body)
    finally:
        script.in_flight -= 1


async def _stream(request: web.Request, script: Script, body: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    tokens = tokens_for(body)
    if script.drop_every is not None:
        tokens = [t for n, t in enumerate(tokens, 1) if n % script.drop_every]
    end = "\r\n" if script.crlf else "\n"

    def event(payload: dict[str, Any] | str) -> bytes:
        text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
        return f"data: {text}{end}{end}".encode()

    events: list[tuple[bytes, int]] = []
    for start in range(0, len(tokens), script.per_chunk):
        part = tokens[start : start + script.per_chunk]
        last = start + script.per_chunk >= len(tokens)
        choice: dict[str, Any] = {
            "index": 0,
            "text": "".join(map(text_of, part)),
            "finish_reason": "length" if last else None,
            "stop_reason": None,
        }
        if script.give_ids:
            choice["token_ids"] = part
        events.append((event({"choices": [choice]}), len(part)))
    if script.bad_json:
        events[len(events) // 2] = (event("{not json"), 0)
    sent = 0
    glued = script.events_per_write
    for first in range(0, len(events), glued):
        batch = events[first : first + glued]
        await asyncio.sleep(script.gap_s)
        if script.stall_after is not None and sent >= script.stall_after:
            await asyncio.sleep(script.stall_s)
            script.stall_after = None
        payload = b"".join(data for data, _ in batch)
        middle = len(payload) // 2 if script.split_writes else len(payload)
        await response.write(payload[:middle])
        if script.split_writes:
            await asyncio.sleep(0)
            await response.write(payload[middle:])
        sent += sum(count for _, count in batch)
        if script.cut_after is not None and sent >= script.cut_after:
            assert request.transport is not None
            request.transport.close()
            return response
    usage = {"completion_tokens": round(len(tokens) * script.usage_factor)}
    await response.write(event({"choices": [], "usage": usage}) + event("[DONE]"))
    await response.write_eof()
    return response


async def _openapi(request: web.Request) -> web.Response:
    script = request.app[SCRIPT]
    properties: dict[str, dict[str, str]] = {name: {} for name in script.fields}
    return web.json_response({"components": {"schemas": {"CompletionRequest": {"properties": properties}}}})


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "mock", "max_model_len": 512}]})


async def _metrics(request: web.Request) -> web.Response:
    script = request.app[SCRIPT]
    return web.Response(
        text=f'vllm:spec_decode_num_drafts_total{{engine="0"}} {3 * len(script.bodies)}.0\n'
        f'vllm:prefix_cache_hits_total{{engine="0"}} 0.0\n'
    )


def serving(script: Script) -> AbstractContextManager[str]:
    """Serve in a thread; the context is the base URL."""
    app = web.Application()
    app[SCRIPT] = script
    app.router.add_post("/v1/completions", _complete)
    for path, handler in (("/openapi.json", _openapi), ("/v1/models", _models), ("/metrics", _metrics)):
        app.router.add_get(path, handler)
    return serving_app(app)
