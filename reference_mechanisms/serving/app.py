"""The HTTP face: routes, bodies in and out, and clients that go away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, TypeVar

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from reference_mechanisms.serving.answers import DONE, Answering, models, refusal, sse
from reference_mechanisms.serving.asking import (
    Asked,
    Served,
    of_chat,
    of_completion,
    of_detokenize,
    of_tokenize,
)
from reference_mechanisms.serving.desk import Desk, Ticket
from reference_mechanisms.serving.errors import EngineFailed, NotServing, Refusal, TooLarge
from reference_mechanisms.serving.fields import (
    Body,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    openapi,
    read,
)
from reference_mechanisms.serving.metrics import Metrics
from reference_mechanisms.serving.text import Text, TextStream

MAX_BODY = 4 * 2**20  # bytes; a prompt of 2**17 ids fits
T = TypeVar("T")
Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]
GONE = 499  # status of an answer that nobody hears


class Edge(NamedTuple):
    """Time and chance, passed in."""

    time: Callable[[], float]  # seconds since the epoch
    new_name: Callable[[], str]  # of a request, never twice the same
    new_seed: Callable[[], int]  # for a request that names none


class About(NamedTuple):
    """What the server tells of itself."""

    served: Served
    root: str  # where the target lies
    version: str  # of this package
    settings: Mapping[str, Any]  # for `/server_info`


class Face:
    """The endpoints; each turns a body into one answer."""

    def __init__(self, about: About, text: Text, desk: Desk, metrics: Metrics, edge: Edge) -> None:
        """Take what is told, its tokenizer, where requests are admitted, and what `/metrics` tells."""
        self._about, self._text, self._desk, self._metrics, self._edge = about, text, desk, metrics, edge
        self._created = int(edge.time())

    async def completions(self, http: HttpRequest) -> Response:
        """`/v1/completions`."""
        body = await _body(http, CompletionRequest)
        name = f"cmpl-{self._edge.new_name()}"
        asked = of_completion(body, self._about.served, self._text, name, self._edge.new_seed)
        return await self._answer(http, asked)

    async def chat(self, http: HttpRequest) -> Response:
        """`/v1/chat/completions`."""
        body = await _body(http, ChatCompletionRequest)
        name = f"chatcmpl-{self._edge.new_name()}"
        asked = of_chat(body, self._about.served, self._text, name, self._edge.new_seed)
        return await self._answer(http, asked)

    async def tokenize(self, http: HttpRequest) -> Response:
        """`/tokenize`: ids of a text or of a chat."""
        served = self._about.served
        ids = of_tokenize(await _body(http, TokenizeRequest), served, self._text)
        return _json({"count": len(ids), "max_model_len": served.context_length, "tokens": ids})

    async def detokenize(self, http: HttpRequest) -> Response:
        """`/detokenize`: text of ids."""
        body = await _body(http, DetokenizeRequest)
        return _json({"prompt": of_detokenize(body, self._about.served, self._text)})

    async def models(self, http: HttpRequest) -> Response:
        """`/v1/models`."""
        del http
        return _json(models(self._about.served, self._about.root, self._created))

    async def health(self, http: HttpRequest) -> Response:
        """`/health`: 200 while requests are admitted, else 503."""
        del http
        if not self._desk.serving:
            raise NotServing("the engine has failed, or the server is being stopped")
        return Response()

    async def metrics(self, http: HttpRequest) -> Response:
        """`/metrics`, as Prometheus reads it."""
        del http
        return Response(self._metrics.exposed(), media_type=CONTENT_TYPE_LATEST)

    async def version(self, http: HttpRequest) -> Response:
        """`/version` of this package."""
        del http
        return _json({"version": self._about.version})

    async def openapi(self, http: HttpRequest) -> Response:
        """`/openapi.json`: fields, types and ranges of every body."""
        del http
        return _json(openapi(self._about.version))

    async def server_info(self, http: HttpRequest) -> Response:
        """`/server_info`: the effective settings."""
        del http
        return _json(dict(self._about.settings))

    async def _answer(self, http: HttpRequest, asked: Asked) -> Response:
        ticket = self._desk.submit(asked.request)
        answering = Answering(asked, self._about.served.name, int(self._edge.time()))
        if asked.stream:
            return _EventStream(ticket, _chunks(ticket, answering, self._text))
        with contextlib.closing(ticket):
            found = await _unless_gone(http.receive, _whole(ticket, answering))
        return Response(status_code=GONE) if found is None else _json(found)


class _EventStream(Response):
    """Sends chunks as they come; closes its ticket when they end or the client goes, whichever is first."""

    media_type = "text/event-stream"

    def __init__(self, ticket: Ticket, chunks: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._ticket, self._chunks = ticket, chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        with contextlib.closing(self._ticket), contextlib.suppress(OSError):
            await _unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def build_app(face: Face, lifespan: Lifespan) -> Starlette:
    """The application.

    Args:
        face: its endpoints.
        lifespan: what is done before the first request and behind the last.
    """
    posts = {
        "/v1/completions": face.completions,
        "/v1/chat/completions": face.chat,
        "/tokenize": face.tokenize,
        "/detokenize": face.detokenize,
    }
    gets = {
        "/v1/models": face.models,
        "/health": face.health,
        "/metrics": face.metrics,
        "/version": face.version,
        "/openapi.json": face.openapi,
        "/server_info": face.server_info,
    }
    return Starlette(
        routes=[
            *(Route(path, one, methods=["POST"]) for path, one in posts.items()),
            *(Route(path, one, methods=["GET"]) for path, one in gets.items()),
        ],
        exception_handlers=dict.fromkeys((Refusal, ClientDisconnect, HTTPException, Exception), _refused),
        lifespan=lifespan,
    )


async def _chunks(ticket: Ticket, answering: Answering, text: Text) -> AsyncIterator[bytes]:
    """The events of a stream, to its end marker."""
    pieces = TextStream(text.decode, ticket.request.sampling.stop)
    emitted = 0
    try:
        async for event in ticket.events():
            piece = (
                pieces.push(event.token_ids)
                if event.finish_reason is None
                else pieces.finish(event.text or "")
            )
            yield sse(answering.chunk(event, piece, first=emitted == 0))
            emitted += len(event.token_ids)
    except Refusal as error:
        yield sse(refusal(error))
        return
    if answering.asked.include_usage:
        yield sse(answering.usage_chunk(emitted))
    yield DONE


async def _whole(ticket: Ticket, answering: Answering) -> dict[str, Any]:
    ids: list[int] = []
    async for event in ticket.events():
        ids += event.token_ids
        if event.finish_reason is not None:
            return answering.whole(ids, event)
    raise AssertionError("a ticket ends with a finish reason or a refusal")


async def _unless_gone(receive: Receive, work: Awaitable[T]) -> T | None:
    """The result of some work, or None if the client goes away first: the work is cancelled then."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for one in (working, leaving):
            one.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(http: HttpRequest, kind: type[Body]) -> Body:
    """The checked body of a request.

    Raises:
        Refusal: it is too long, or not what it should be.
    """
    received = bytearray()
    async for part in http.stream():
        received += part
        if len(received) > MAX_BODY:
            raise TooLarge(f"the body is longer than {MAX_BODY} bytes; shorten it", "body")
    return read(bytes(received), kind)


def _json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


async def _refused(http: HttpRequest, error: Exception) -> Response:
    """The answer to whatever an endpoint raised; what is not foreseen is logged by the server."""
    headers: Mapping[str, str] | None = None
    match error:
        case Refusal():
            found = error
            headers = None if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
        case HTTPException():
            found, headers = Refusal(f"{http.method} {http.url.path}: {error.detail}"), error.headers
            found.status = error.status_code
        case ClientDisconnect():
            return Response(status_code=GONE)
        case _:
            found = EngineFailed("the server failed; its log says how")
    return _json(refusal(found), found.status, headers)
