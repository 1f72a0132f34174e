"""The gateway's HTTP face: who asks, whether it fits the budget, what came of it.

Tokens stand for scopes: an explorer's own opens attempts below it (`POST /attempts`), each with a budget
and a token of its own. `GET /spent` tells what a scope and those above it have spent.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from agent_loop.gateway.accounts import Account, Accounts
from agent_loop.gateway.asking import (
    COUNT_MARGIN,
    COUNTED,
    OVERHEAD_TOKENS,
    Asked,
    Refusal,
    bound,
    examine,
    spent,
)
from agent_loop.gateway.prices import Prices, Usage
from agent_loop.gateway.reading import StreamReader, message_usage
from agent_loop.gateway.transcripts import Exchange, Transcripts
from agent_loop.gateway.upstream import CUT, Unreachable, Upstream
from agent_loop.protocols import BudgetSpent
from agent_loop.records import Budget, Spent
from harness.codec import Record, digest, from_json
from harness.errors import HarnessError

LARGEST_BODY = 64 << 20  # bytes
BACK = ("content-type", "request-id", "retry-after", "retry-after-ms", "x-should-retry")
SCOPE = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
STREAM, JSON = "text/event-stream", "application/json"


class Attempt(Record, frozen=True):
    """Body of `POST /attempts`."""

    name: str
    budget: Budget = Budget()

    def __post_init__(self) -> None:
        """The name becomes that of a file."""
        if not re.fullmatch(SCOPE, self.name):
            raise ValueError("`name` must be 1 to 64 letters, digits, '.', '_' or '-'")


@dataclass(slots=True)
class Gateway:
    """What the handlers share; one event loop uses it."""

    accounts: Accounts
    transcripts: Transcripts
    upstream: Upstream
    prices: Prices
    longest: int
    now: Callable[[], datetime.datetime]
    tokens: dict[str, Account] = field(default_factory=dict)

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_post("/v1/messages", self.messages)
        app.router.add_post("/v1/messages/count_tokens", self.count)
        app.router.add_post("/attempts", self.attempt)
        app.router.add_get("/spent", self.told)
        return app

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """One turn of a conversation."""
        account = self._account(request)
        if account is None:
            return failure(401, "authentication_error", "unknown token; use the one of this explorer")
        data = await request.read()
        try:
            body = json.loads(data)
            asked = examine(body, len(data), self.prices, self.longest)
        except (ValueError, Refusal, HarnessError) as error:
            return failure(400, "invalid_request_error", str(error))
        sha256 = digest(body)
        earlier = self.transcripts.earlier(account.scope, sha256)
        if earlier is not None:
            again = msgspec.structs.replace(earlier, at=self._now, replayed=True, usage=None, dollars=0.0)
            self.transcripts.write(again)
            kind = STREAM if earlier.stream else JSON
            return web.Response(text=earlier.response, content_type=kind, headers={"x-replayed": "true"})
        try:
            most, number = await self._reserve(account, body, asked, lower(request))
        except BudgetSpent as error:
            return exhausted(error)
        exchange = Exchange(
            at=self._now,
            scope=account.scope,
            request=body,
            request_sha256=sha256,
            status=0,
            complete=False,
            stream=asked.stream,
            response="",
        )
        turn = Turn(self, account, asked, most, number, exchange)
        try:
            return await turn.take(request, data)
        finally:
            turn.close()

    async def count(self, request: web.Request) -> web.StreamResponse:
        """Token counts are free; they need a token all the same."""
        account = self._account(request)
        if account is None:
            return failure(401, "authentication_error", "unknown token; use the one of this explorer")
        data = await request.read()
        try:
            body = json.loads(data)
            examine({**body, "max_tokens": 1}, len(data), self.prices, self.longest)
            async with self.upstream.ask("/v1/messages/count_tokens", data, lower(request)) as (response, _):
                text = await response.read()
                return web.Response(body=text, status=response.status, headers=_back(response.headers))
        except (ValueError, TypeError, Refusal, HarnessError) as error:
            return failure(400, "invalid_request_error", str(error))
        except (Unreachable, *CUT) as error:
            return failure(502, "api_error", str(error))

    async def attempt(self, request: web.Request) -> web.StreamResponse:
        """Open a scope below an explorer's."""
        account = self._account(request)
        if account is None or account.parent is None or account.parent.parent is not None:
            return failure(401, "authentication_error", "attempts are opened with the token of an explorer")
        try:
            wanted = from_json(await request.read(), Attempt, "attempt")
        except HarnessError as error:
            return failure(400, "invalid_request_error", str(error))
        token = secrets.token_urlsafe(24)
        self.tokens[token] = self.accounts.open(f"{account.scope}/{wanted.name}", wanted.budget)
        return web.json_response({"token": token})

    async def told(self, request: web.Request) -> web.StreamResponse:
        """What was spent so far, in the scope of the token and those above it."""
        account = self._account(request)
        if account is None:
            return failure(401, "authentication_error", "unknown token; use the one of this explorer")
        return web.Response(body=msgspec.json.encode(self.accounts.told(account)), content_type=JSON)

    async def _reserve(
        self, account: Account, body: Any, asked: Asked, headers: dict[str, str]
    ) -> tuple[Usage, int]:
        """Set the worst case aside: by bytes, and where that does not fit by the API's own count.

        Raises:
            BudgetSpent: it fits neither way.
        """
        try:
            return asked.most, self.accounts.reserve(account, spent(asked.most, asked.price))
        except BudgetSpent as error:
            if error.field not in ("dollars", "input_tokens"):
                raise
            counted = await self.upstream.count({k: v for k, v in body.items() if k in COUNTED}, headers)
            if counted is None:
                raise
            tokens = int(counted * COUNT_MARGIN) + OVERHEAD_TOKENS
            if tokens >= asked.most.all_input:
                raise
            most = bound(body, tokens, asked.max_tokens)
            return most, self.accounts.reserve(account, spent(most, asked.price))

    def _account(self, request: web.Request) -> Account | None:
        shown = request.headers.get("x-api-key") or request.headers.get("authorization") or ""
        return self.tokens.get(shown.removeprefix("Bearer "))

    @property
    def _now(self) -> str:
        return self.now().isoformat(timespec="milliseconds")


@dataclass(slots=True)
class Turn:
    """One request on its way; settled and written down whatever becomes of it."""

    gateway: Gateway
    account: Account
    asked: Asked
    most: Usage
    number: int
    exchange: Exchange
    used: Usage | None = None  # None: not billed
    sent: bool = False  # the API may have begun to answer

    async def take(self, request: web.Request, data: bytes) -> web.StreamResponse:
        """Ask the API and hand the answer on."""
        path = "/v1/messages" + (f"?{request.query_string}" if request.query_string else "")
        try:
            self.sent = True
            async with self.gateway.upstream.ask(path, data, lower(request)) as (response, attempts):
                self._note(
                    status=response.status, attempts=attempts, request_id=response.headers.get("request-id")
                )
                if response.status == 200 and self.asked.stream:
                    return await self._stream(request, response)
                text = await response.read()
                if response.status == 200:
                    self.used = message_usage(text, self.most)
                self.sent = False
                self._note(response=text.decode(errors="replace"), complete=response.status == 200)
                return web.Response(body=text, status=response.status, headers=_back(response.headers))
        except Unreachable as error:
            self.sent = False
            return failure(502, "api_error", str(error))
        except CUT as error:
            self.used = self.most if self.exchange.status == 200 else None
            self.sent = False
            return failure(502, "api_error", f"the answer was cut off: {type(error).__name__}")

    async def _stream(self, request: web.Request, response: Any) -> web.StreamResponse:
        """Pass events on as they come; a stream that is cut ends with an error event."""
        reader, parts = StreamReader(), []
        answer = web.StreamResponse(headers=_back(response.headers))
        try:
            await answer.prepare(request)
            with contextlib.suppress(*CUT):
                async for block in response.content.iter_any():
                    parts.append(block)
                    reader.feed(block)
                    await answer.write(block)
            if not reader.finished and not reader.failed:
                await answer.write(_cut_event())
            await answer.write_eof()
        finally:  # also when the explorer has left
            self.used = reader.usage(self.most)
            whole = reader.finished and not reader.failed and not reader.damaged
            self.sent = False
            self._note(response=b"".join(parts).decode(errors="replace"), complete=whole)
        return answer

    def close(self) -> None:
        """Settle: what was used, or the whole reservation where nobody can know."""
        if self.sent and self.used is None:
            self.used = self.most
        used = Spent(turns=1) if self.used is None else spent(self.used, self.asked.price)
        self.gateway.accounts.settle(self.account, self.number, used)
        self._note(usage=self.used, dollars=used.dollars)
        self.gateway.transcripts.write(self.exchange)

    def _note(self, **changes: Any) -> None:
        self.exchange = msgspec.structs.replace(self.exchange, **changes)


def failure(status: int, kind: str, message: str, **details: object) -> web.Response:
    """An error in the API's own form."""
    error = {"type": kind, "message": message, **({"details": details} if details else {})}
    headers = {"x-should-retry": "false"}
    return web.json_response({"type": "error", "error": error}, status=status, headers=headers)


def exhausted(error: BudgetSpent) -> web.Response:
    """A budget is spent; the explorer is told which, and not to try again."""
    details = {"error_code": "budget_spent", "field": error.field, "scope": error.scope}
    return failure(429, "rate_limit_error", str(error), **details)


def lower(request: web.Request) -> dict[str, str]:
    """Headers by lower-case name."""
    return {name.lower(): value for name, value in request.headers.items()}


def _back(headers: Any) -> dict[str, str]:
    return {name: headers[name] for name in BACK if name in headers}


def _cut_event() -> bytes:
    error = {"type": "error", "error": {"type": "api_error", "message": "the stream was cut off"}}
    return b"\n\nevent: error\ndata: " + json.dumps(error).encode() + b"\n\n"
