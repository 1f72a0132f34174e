"""Delay, capture and cache, on engines and servers with a known answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from aiohttp import web

from harness.errors import UsageError
from harness.live_audits import cache_audits, capture_overhead, delay_injection
from harness.load.wire import Capabilities
from harness.measure.worker import SystemClock
from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.harness.fakes import ScriptedSession, make_job, make_prompts
from tests.harness.load.threads import serving_app

BACKEND = "tests.harness.test_live_audits:open_costly"
PROMPTS = [[n, n + 1, n + 2, 7] for n in range(10, 90, 10)]


class CostlySession(ScriptedSession):
    """Takes two milliseconds a request, and `capture_ms` more where logits are captured."""

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        cost = float(self.params[arm].get("capture_ms", 0.0)) if requests[0].capture_logits else 0.0
        time.sleep((2.0 + cost) / 1e3)
        yield from super().stream(arm, requests)


def open_costly(deployment: Deployment, arms: Sequence[ArmSpec]) -> CostlySession:
    return CostlySession(deployment, arms)


def arms(**params: Any) -> tuple[ArmSpec, ...]:
    return (
        ArmSpec(name="ar", kind="ar", backend=BACKEND, params=params),
        ArmSpec(name="stock", kind="stock", backend=BACKEND, params={"drafts": 2}),
    )


@pytest.mark.parametrize(("capture_ms", "passed"), [(0.0, True), (2.0, False)])
def test_capturing_that_slows_the_timed_run_fails(capture_ms: float, passed: bool) -> None:
    job = make_job(arms(capture_ms=capture_ms))
    for _ in range(3):  # a busy machine may slow one side of a short measurement
        found = capture_overhead(job, make_prompts(8), SystemClock())
        if found.passed is passed:
            break
    assert found.passed is passed, found.detail


def test_a_delay_in_every_step_is_seen_and_none_is_missed() -> None:
    found = delay_injection(make_job(arms(), max_tokens=9), make_prompts(3), "stock", 5.0, SystemClock())
    assert found.passed is True, found.detail


def test_a_clock_that_misses_the_delay_fails() -> None:
    class Blind(SystemClock):
        """Looks at the time of the processor, which does not pass while a step sleeps."""

        def monotonic_ns(self) -> int:
            return time.process_time_ns()

    found = delay_injection(make_job(arms(), max_tokens=9), make_prompts(3), "stock", 20.0, Blind())
    assert found.passed is False, found.detail


CACHED = web.AppKey("cached", set)
KEEPS = web.AppKey("keeps", bool)


async def _complete(request: web.Request) -> web.StreamResponse:
    """Two tokens after five milliseconds; at once where the prompt was met before and answers are kept."""
    body = await request.json()
    seen, key = request.app[CACHED], tuple(body["prompt"])
    if not (request.app[KEEPS] and key in seen):
        await asyncio.sleep(0.02)
    seen.add(key)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for n in range(2):
        choice = {"index": 0, "text": "a ", "token_ids": [n], "finish_reason": "length" if n else None}
        await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
    usage = {"choices": [], "usage": {"completion_tokens": 2}}
    await response.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
    return response


def server(*, keeps: bool) -> web.Application:
    app = web.Application()
    app[CACHED], app[KEEPS] = set(), keeps
    app.router.add_post("/v1/completions", _complete)
    return app


CAPABILITIES = Capabilities(model="m", version=None, fields=(), metrics=False)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_server_that_keeps_answers_is_caught_by_repetition(keeps: bool) -> None:
    with serving_app(server(keeps=keeps)) as base:
        found = cache_audits(base, CAPABILITIES, PROMPTS, SystemClock(), max_tokens=2)
    assert [audit.passed for audit in found] == [True, not keeps, not keeps], found


def test_too_few_prompts_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 8"):
        cache_audits("http://127.0.0.1:1", CAPABILITIES, PROMPTS[:3], SystemClock(), max_tokens=2)
