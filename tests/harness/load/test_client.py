"""The client against a scripted server: every chunking counts the same, every fault is one failed request."""

from __future__ import annotations

import re
import time

import pytest

from harness.load.client import Reply
from harness.load.generator import drive
from harness.load.wire import Capabilities, request_body
from harness.measure.worker import SystemClock
from harness.records import DecodeRequest, Sampling
from tests.harness.load.mock_server import FIELDS, Script, serving, tokens_for

CAPABLE = Capabilities(model="mock", version=None, fields=tuple(FIELDS), metrics=True)


def bodies(count: int, max_tokens: int = 32) -> list[dict[str, object]]:
    sampling = Sampling(max_tokens=max_tokens)
    return [
        request_body(
            DecodeRequest(request_id=f"r{n}", prompt_token_ids=(1, 2, n), sampling=sampling), CAPABLE, None
        )
        for n in range(count)
    ]


def run(script: Script, count: int = 3, *, concurrency: int = 2, max_tokens: int = 32) -> list[Reply]:
    with serving(script) as url:
        return drive(
            f"{url}/v1/completions",
            bodies(count, max_tokens),
            SystemClock(),
            concurrency=concurrency,
            timeout_s=2.0,
        )


def ids(exchange: Reply) -> list[int]:
    return [token for chunk in exchange.chunks for token in chunk.token_ids or ()]


@pytest.mark.parametrize("per_chunk", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("glued", [1, 3])
def test_every_chunking_gives_the_same_tokens(per_chunk: int, glued: int) -> None:
    for n, exchange in enumerate(run(Script(per_chunk=per_chunk, events_per_write=glued))):
        assert exchange.error is None
        assert ids(exchange) == tokens_for({"prompt": [1, 2, n], "max_tokens": 32})
        assert (exchange.finish_reason, exchange.usage_tokens) == ("length", 32)


@pytest.mark.parametrize("script", [Script(split_writes=True), Script(crlf=True)], ids=["split", "crlf"])
def test_the_network_may_cut_events_anywhere(script: Script) -> None:
    assert all(len(ids(exchange)) == 32 for exchange in run(script))


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (Script(cut_after=5), "cut after 5 chunks|ClientPayloadError|ServerDisconnected"),
        (Script(status=500), "HTTP 500: engine is dead"),
        (Script(bad_json=True), "no completion chunk"),
        (Script(stall_after=4, stall_s=5.0), "timed out"),
        (Script(refuse_first=99), "refused 4 times"),
        (Script(refuse_first=99, retry_after="3600"), "Retry-After 3600"),
    ],
    ids=["cut", "500", "bad-json", "stall", "refusing", "refusing-for-an-hour"],
)
def test_a_fault_is_a_failed_request_with_its_reason(script: Script, told: str) -> None:
    failed = [exchange for exchange in run(script, count=1) if exchange.error is not None]
    assert len(failed) == 1
    assert re.search(told, failed[0].error or "")


def test_a_refusal_with_retry_after_is_waited_for_and_its_time_counts() -> None:
    script = Script(refuse_first=2, retry_after="0.15")
    (exchange,) = run(script, count=1)
    assert exchange.error is None
    assert exchange.refusals == 2
    assert exchange.chunks[0].at_ns >= 0.3e9


def test_concurrency_is_kept_and_never_exceeded() -> None:
    script = Script(gap_s=0.002)
    run(script, count=9, concurrency=3, max_tokens=8)
    assert script.most_in_flight == 3


def test_arrivals_are_kept_whatever_the_server_does() -> None:
    script = Script(gap_s=0.02)
    arrivals = [0.0, 0.05, 0.1, 0.4]
    with serving(script) as url:
        done = drive(
            f"{url}/v1/completions",
            bodies(4, 20),
            SystemClock(),
            concurrency=100,
            arrivals=arrivals,
        )
    for exchange, planned in zip(done, arrivals, strict=True):
        assert exchange.sent_ns / 1e9 == pytest.approx(planned, abs=0.05)
    assert script.most_in_flight >= 3


def test_the_client_itself_is_fast() -> None:
    """Against a server without gaps, a token must cost the client well under a millisecond."""
    started = time.perf_counter()
    done = run(Script(), count=20, concurrency=10, max_tokens=100)
    elapsed = time.perf_counter() - started
    assert all(exchange.error is None for exchange in done)
    assert elapsed / 2000 < 2e-3
