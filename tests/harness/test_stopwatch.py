"""Events to timed responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from harness.measure.stopwatch import Place, run_batch
from harness.records import DecodeRequest, Response, Sampling, StepEvent
from tests.harness.fakes import FakeClock, ScriptedSession, make_job

PLACE = Place(arm="stock", launch=0, block=1, order=7)


class Played(ScriptedSession):
    """Yields given events."""

    def __init__(self, events: Sequence[StepEvent]) -> None:
        self.events = events

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        yield from self.events


def play(*events: StepEvent, requests: int = 1) -> list[Response]:
    asked = [
        DecodeRequest(request_id=f"r{n}", prompt_token_ids=(1, 2), sampling=Sampling(max_tokens=9))
        for n in range(requests)
    ]
    return run_batch(Played(events), asked, [f"own/p{n}" for n in range(requests)], PLACE, FakeClock())


def test_times_are_those_of_the_measurer_and_counts_those_of_the_events() -> None:
    job = make_job(max_tokens=6)
    session = ScriptedSession(job.deployment, job.plan.arms)
    request = DecodeRequest(request_id="r", prompt_token_ids=(1,), sampling=job.plan.sampling)
    (response,) = run_batch(session, [request], ["own/p0"], PLACE, FakeClock(tick_ns=500))
    assert response.token_ids == (10, 11, 12, 13, 14, 15)
    assert response.first_token_ns == 500
    assert [step.at_ns for step in response.steps] == [1000, 1500]
    assert [step.num_emitted_tokens for step in response.steps] == [3, 2]
    assert response.end_ns == 1500
    assert (response.block, response.order, response.finish_reason) == (1, 7, "length")


def test_interleaved_requests_of_a_batch_keep_their_own_tokens() -> None:
    first, second = play(
        StepEvent(index=0, kind="prefill", token_ids=(5,)),
        StepEvent(index=1, kind="prefill", token_ids=(6,), finish_reason="stop", stop_reason=6),
        StepEvent(index=0, kind="step", token_ids=(7,), finish_reason="length"),
        requests=2,
    )
    assert first.token_ids == (5, 7)
    assert second.token_ids == (6,)
    assert second.stop_reason == 6


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([StepEvent(index=0, kind="prefill", token_ids=(5,))], "ended before r0"),
        ([StepEvent(index=0, kind="step", token_ids=(5,))], "before its prefill"),
        ([StepEvent(index=3, kind="prefill", token_ids=(5,))], "request 3 of a batch of 1"),
        (
            [
                StepEvent(index=0, kind="prefill", token_ids=(5,), finish_reason="stop"),
                StepEvent(index=0, kind="step", token_ids=(6,)),
            ],
            "after its last event",
        ),
        (
            [
                StepEvent(index=0, kind="prefill", token_ids=(5,)),
                StepEvent(
                    index=0,
                    kind="step",
                    token_ids=(6, 7, 8),
                    num_draft_tokens=4,
                    num_accepted_tokens=1,
                    finish_reason="stop",
                ),
            ],
            "emitted 3 tokens with 1 accepted",
        ),
        ([StepEvent(index=0, kind="prefill", token_ids=(), finish_reason="length")], "without a token"),
    ],
    ids=["cut-stream", "no-prefill", "wrong-index", "after-end", "impossible-counts", "empty"],
)
def test_a_backend_that_breaks_the_protocol_gives_a_failed_response(
    events: list[StepEvent], reason: str
) -> None:
    (response,) = play(*events)
    assert response.status == "failed"
    assert reason in (response.error or "")
    assert response.end_ns is None
    assert response.token_ids == ()
