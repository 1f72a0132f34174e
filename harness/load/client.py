"""One streamed completion over HTTP, stamped on arrival. Nothing here judges or retokenises."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

import aiohttp

from harness.errors import BackendError
from harness.load.sse import EventParser
from harness.load.wire import FINISH_REASONS, parse_chunk
from harness.protocols import Clock

ATTEMPTS = 4  # of a request that is answered 429 or 503 before it starts
LONGEST_WAIT_S = 30.0  # a longer Retry-After is a failed request
MAX_STREAM_BYTES = 512 * 1024 * 1024  # a server that never ends a stream must not fill the memory
MAX_ERROR_BYTES = 4096  # of the body of an answer that is no stream


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedChunk:
    """One event that carried text or tokens."""

    text: str
    token_ids: tuple[int, ...] | None
    at_ns: int  # since the request was first sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One request and all that came back. `error` is None only for a stream that ended well."""

    sent_ns: int  # since the load began
    end_ns: int  # since the request was first sent, last event or failure
    chunks: tuple[TimedChunk, ...] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    usage_tokens: int | None = None
    refusals: int = 0  # times the server answered 429 or 503 first
    error: str | None = None


async def exchange(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], clock: Clock, origin_ns: int
) -> Reply:
    """Send one request and follow its stream to the end.

    A refusal (429, 503) is retried after what `Retry-After` says; the waiting counts into the
    request's time, for that is what a user waits. Everything else that goes wrong is an Reply
    with an error: requests of a run fail one by one, in every arm alike.

    Args:
        http: open client session; its timeout bounds the request.
        url: of the completions endpoint.
        body: the JSON to send.
        clock: of the measurer.
        origin_ns: when the load began, on that clock.
    """
    sent = clock.monotonic_ns()
    refusals = 0

    def failed(error: str, chunks: list[TimedChunk] | None = None) -> Reply:
        return Reply(
            sent_ns=sent - origin_ns,
            end_ns=clock.monotonic_ns() - sent,
            chunks=tuple(chunks or ()),
            refusals=refusals,
            error=error,
        )

    for attempt in range(ATTEMPTS):
        try:
            async with http.post(url, json=body) as response:
                if response.status in (429, 503):
                    refusals += 1
                    wait = _retry_after(response.headers.get("Retry-After"), attempt)
                    if wait > LONGEST_WAIT_S:
                        return failed(f"HTTP {response.status} and Retry-After {wait:.0f} s")
                    await asyncio.sleep(wait)
                    continue
                if response.status != 200:
                    said = (await response.content.read(MAX_ERROR_BYTES)).decode("utf-8", errors="replace")
                    return failed(f"HTTP {response.status}: {_short(said)}")
                return await _follow(response, clock, sent, origin_ns, refusals)
        except (aiohttp.ClientError, BackendError, UnicodeDecodeError) as error:
            return failed(f"{type(error).__name__}: {_short(str(error))}")
        except TimeoutError:
            return failed("timed out")
    return failed(f"refused {refusals} times (HTTP 429 or 503)")


async def _follow(
    response: aiohttp.ClientResponse, clock: Clock, sent: int, origin_ns: int, refusals: int
) -> Reply:
    parser = EventParser()
    chunks: list[TimedChunk] = []
    finish: str | None = None
    stop: int | str | None = None
    usage: int | None = None
    ended = False
    last = 0
    size = 0
    async for received in response.content.iter_any():
        now = clock.monotonic_ns() - sent
        size += len(received)
        if size > MAX_STREAM_BYTES:
            raise BackendError(f"the server sent more than {MAX_STREAM_BYTES} bytes for one request")
        for data in parser.feed(received):
            chunk = parse_chunk(data)
            if chunk is None:
                ended = True
                continue
            if chunk.usage_tokens is not None:
                usage = chunk.usage_tokens
            if chunk.text or chunk.token_ids:
                if finish is not None:
                    raise BackendError("the server sent tokens after the finish reason")
                chunks.append(TimedChunk(text=chunk.text, token_ids=chunk.token_ids, at_ns=now))
                last = now
            if chunk.finish_reason is not None:
                finish, stop = chunk.finish_reason, chunk.stop_reason
                last = now
    if not ended or finish is None or parser.pending():
        raise BackendError(f"the stream was cut after {len(chunks)} chunks")
    if finish not in FINISH_REASONS:
        raise BackendError(f"the server ended the request with finish reason {finish!r}")
    return Reply(
        sent_ns=sent - origin_ns,
        end_ns=last,
        chunks=tuple(chunks),
        finish_reason=finish,
        stop_reason=stop,
        usage_tokens=usage,
        refusals=refusals,
    )


def _retry_after(header: str | None, attempt: int) -> float:
    """Seconds to wait: what the server says, else 0.5, 1, 2 ..."""
    if header is not None and re.fullmatch(r"\d+(\.\d+)?", header.strip()):
        return float(header)
    return 0.5 * 2.0**attempt


def _short(text: str) -> str:
    return " ".join(text.split())[:300]
