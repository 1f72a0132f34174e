"""Clients that wait, go away or come too many at a time; an engine that fails. No place is ever lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from typing import Any

import aiohttp
import pytest

from harness.plan import Deployment
from tests.reference_mechanisms.serving.running import Client, await_that, serving

NGRAM: dict[str, str | int] = {"drafter": "ngram", "drafts": 3}
LONG = {"prompt": [1, 2], "max_tokens": 100, "temperature": 0, "ignore_eos": True}


def hold_nothing_is_left(client: Client) -> None:
    await_that(lambda: client.server.desk.open_requests == 0 and not client.gate.busy)
    assert client.metric("vllm:num_requests_running") == 0
    assert client.metric("vllm:num_requests_waiting") == 0


def test_one_too_many_is_told_to_come_again_and_the_others_are_served(deployment: Deployment) -> None:
    with serving(deployment, NGRAM, most=2, gated=True) as client, contextlib.ExitStack() as stack:
        first = stack.enter_context(client.streaming(LONG))
        second = stack.enter_context(client.streaming(LONG))
        await_that(lambda: client.server.desk.open_requests == 2)
        refused = client.post("/v1/completions", LONG)
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert "come again" in refused.error["message"]
        assert client.metric("vllm:num_requests_waiting") == 2
        client.gate.turns.release()
        assert first.readline().startswith(b"data: ")
        assert client.metric("vllm:num_requests_running") == 1
        assert client.get("/health").status == 200
        client.gate.open()
        for response in (first, second):
            assert response.read().endswith(b"data: [DONE]\n\n")
        assert client.complete([3], max_tokens=2)["token_ids"]
        hold_nothing_is_left(client)


def test_a_stream_whose_client_goes_is_cancelled_at_its_next_step(deployment: Deployment) -> None:
    with serving(deployment, NGRAM, gated=True) as client:
        with client.streaming(LONG) as response:
            for _ in range(3):
                client.gate.turns.release()
                assert response.readline().startswith(b"data: ")
                response.readline()
        await_that(lambda: client.server.desk.open_requests == 0)
        client.gate.open()
        hold_nothing_is_left(client)
        assert client.gate.cancelled == ["cmpl-r0"]
        assert client.metric("vllm:generation_tokens_total") < 100
        assert client.complete([3], max_tokens=2)["token_ids"]


def test_a_client_that_goes_while_it_waits_is_never_decoded(deployment: Deployment) -> None:
    with serving(deployment, NGRAM, gated=True) as client, client.streaming(LONG) as first:
        with client.streaming(LONG | {"prompt": [9]}):
            await_that(lambda: client.server.desk.open_requests == 2)
        await_that(lambda: client.server.desk.open_requests == 1)
        client.gate.open()
        assert first.read().endswith(b"data: [DONE]\n\n")
        hold_nothing_is_left(client)
        assert client.gate.cancelled == ["cmpl-r1"]
        assert client.gate.decoded == {"cmpl-r0"}


def test_a_client_that_goes_from_a_whole_answer_is_cancelled(deployment: Deployment) -> None:
    async def ask_and_go(url: str) -> None:
        async with aiohttp.ClientSession() as http:
            task = asyncio.ensure_future(http.post(f"{url}/v1/completions", json=LONG))
            while client.server.desk.open_requests == 0:
                await asyncio.sleep(0.002)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    with serving(deployment, NGRAM, gated=True) as client:
        asyncio.run(ask_and_go(client.url))
        await_that(lambda: client.server.desk.open_requests == 0)
        client.gate.open()
        hold_nothing_is_left(client)
        assert client.gate.cancelled == ["cmpl-r0"]


@pytest.mark.parametrize("lanes", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_two_hundred_requests_with_cancels_and_stops_leave_nothing_behind(
    deployment: Deployment, lanes: int
) -> None:
    rng = random.Random(4)  # noqa: S311 - no secret

    async def one(http: aiohttp.ClientSession, url: str, number: int, patience: float | None) -> int:
        body: dict[str, Any] = {
            "prompt": [number % 250, 7],
            "max_tokens": rng.randrange(1, 30),
            "temperature": rng.choice((0, 0.9)),
            "stream": rng.random() < 0.8,
            "stop_token_ids": rng.sample(range(250), k=16),
        }
        if rng.random() < 0.3:
            body["stop"] = [chr(rng.randrange(33, 126)) for _ in range(8)]
        async with http.post(f"{url}/v1/completions", json=body) as response:
            assert response.status == 200
            if patience is None:
                text = await response.text()
                assert text.endswith("data: [DONE]\n\n") or '"usage"' in text
                return 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await response.read()
            return 0

    async def all_of_them(url: str) -> int:
        limit = asyncio.Semaphore(16)

        async def limited(number: int) -> int:
            async with limit:
                patience = rng.choice((None, None, 0.0, 0.003, 0.02))
                return await one(http, url, number, patience)

        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            return sum(await asyncio.gather(*map(limited, range(200))))

    with serving(deployment, NGRAM, lanes=lanes) as client:
        before = client.complete([5, 6], max_tokens=30)
        ended = asyncio.run(all_of_them(client.url))
        hold_nothing_is_left(client)
        assert 0 < ended < 200
        assert len(client.gate.cancelled) > 10
        assert client.complete([5, 6], max_tokens=30) == before


def test_an_engine_that_fails_is_told_to_everyone_and_ends_the_server(deployment: Deployment) -> None:
    with serving(deployment, NGRAM, gated=True) as client:
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(client.post("/v1/completions", LONG)))
        with client.streaming(LONG) as response:
            asking.start()
            await_that(lambda: client.server.desk.open_requests == 2)
            client.gate.failure = RuntimeError("broken")
            client.gate.open()
            text = response.read()
            assert b"the engine failed: broken" in text
            assert b"[DONE]" not in text
        asking.join()
        assert answers[0].status == 500
        assert "broken" in answers[0].error["message"]


def test_what_cannot_be_loaded_is_said_where_it_is_started(deployment: Deployment) -> None:
    from harness.errors import UsageError  # noqa: PLC0415

    with (
        pytest.raises(UsageError, match="`drafts` must be an integer"),
        serving(deployment, {"drafter": "ngram", "drafts": 0}),
    ):
        pass
