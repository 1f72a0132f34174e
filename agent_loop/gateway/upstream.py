"""Requests to the API, sent again while patience lasts. Holds the key; nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from agent_loop.gateway.patience import Patience, asked_wait, passes

PASSED_ON = ("anthropic-version", "anthropic-beta", "user-agent")
CUT = (aiohttp.ClientError, TimeoutError, ConnectionError)


class Unreachable(Exception):
    """Nothing came back; the message says why."""


class Upstream:
    """The API behind one address."""

    def __init__(self, url: str, key: str, patience: Patience, seed: int = 0) -> None:
        """Connect to nothing yet.

        Args:
            url: base address, without `/v1`.
            key: of the API.
            patience: when to try again.
            seed: of the jitter.
        """
        self._url = url.rstrip("/")
        self._key = key
        self._patience = patience
        self._random = random.Random(seed)  # noqa: S311 - spreads waits, guards nothing
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Upstream:
        """Open the client; proxies of the environment are not used."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0, sock_read=self._patience.idle_s)
        self._session = aiohttp.ClientSession(timeout=timeout, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        if self._session is not None:
            await self._session.close()

    @contextlib.asynccontextmanager
    async def ask(
        self, path: str, data: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, int]]:
        """The first answer that is not worth another attempt, and how many it took.

        Args:
            path: with its query.
            data: body, as it came.
            headers: of the explorer, with names in lower case; few are passed on.

        Raises:
            Unreachable: no attempt brought an answer.
        """
        assert self._session is not None  # noqa: S101 - used as a context manager
        tried, waited = 0, 0.0
        while True:
            tried += 1
            asked: float | None = None
            response: aiohttp.ClientResponse | None = None
            why = ""
            try:
                response = await self._session.post(
                    self._url + path, data=data, headers=self._headers(headers), allow_redirects=False
                )
            except CUT as error:
                why = f"{type(error).__name__}: {error}".replace(self._key, "[key]")
            if response is not None:
                if response.status < 400 or not passes(response.status, response.headers):
                    break
                asked = asked_wait(response.headers, datetime.datetime.now(datetime.UTC))
            wait = self._patience.wait(tried, waited, asked, self._random.random())
            if wait is None:
                break
            if response is not None:
                response.release()
            await asyncio.sleep(wait)
            waited += wait
        if response is None:
            raise Unreachable(f"the API cannot be reached after {tried} attempts: {why}")
        async with response:
            yield response, tried

    async def count(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> int | None:
        """Input tokens by the API's own count; None if it does not tell."""
        assert self._session is not None  # noqa: S101
        try:
            async with self._session.post(
                f"{self._url}/v1/messages/count_tokens",
                json=dict(body),
                headers=self._headers(headers),
                allow_redirects=False,
            ) as response:
                told = (await response.json()).get("input_tokens") if response.status == 200 else None
        except (*CUT, ValueError, AttributeError):
            return None
        return told if isinstance(told, int) and told > 0 else None

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """What is passed on, with the key in the place where the explorer had its token."""
        passed = {name: headers[name] for name in PASSED_ON if name in headers}
        key = {"x-api-key": self._key} if "x-api-key" in headers else {"authorization": f"Bearer {self._key}"}
        return {**passed, **key, "content-type": "application/json", "accept-encoding": "identity"}
