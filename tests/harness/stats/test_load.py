from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.plan import StatsSpec
from harness.records import Chunk, Response
from harness.stats.load import load

MS = 1_000_000


def response(
    *,
    sent_ms: int = 0,
    chunks: Sequence[tuple[int, int]] = ((1, 10), (3, 40)),
    order: int = 0,
    refusals: int = 0,
) -> Response:
    return Response(
        prompt_id=f"own/{sent_ms}-{order}",
        arm="candidate",
        launch=0,
        block=0,
        order=order,
        status="ok",
        prompt_tokens=3,
        started_at=0.0,
        token_ids=tuple(range(sum(count for count, _ in chunks))),
        finish_reason="length",
        first_token_ns=chunks[0][1] * MS,
        end_ns=chunks[-1][1] * MS,
        chunks=tuple(Chunk(num_tokens=count, at_ns=at * MS) for count, at in chunks),
        sent_ns=sent_ms * MS,
        refusals=refusals,
    )


def failed() -> Response:
    return Response(
        prompt_id="own/bad",
        arm="candidate",
        launch=0,
        block=0,
        order=0,
        status="failed",
        prompt_tokens=3,
        started_at=0.0,
        error="HTTP 500",
    )


@pytest.mark.parametrize("per_chunk", [1, 2, 4, 8, 16])
def test_throughput_is_the_same_for_every_chunking(per_chunk: int) -> None:
    chunks = tuple((per_chunk, 10 * (n + 1)) for n in range(16 // per_chunk - 1))
    chunks += ((16 - sum(count for count, _ in chunks), 200),)
    found = load([response(chunks=chunks)], StatsSpec())
    assert found is not None
    assert found.output_tokens_per_second == pytest.approx(16 / 0.2)


def test_overlapping_requests_share_their_wall_time() -> None:
    found = load([response(), response(sent_ms=20)], StatsSpec())
    assert found is not None
    assert found.wall_seconds == pytest.approx(0.060)
    assert found.output_tokens_per_second == pytest.approx(8 / 0.060)
    assert found.requests_per_second == pytest.approx(2 / 0.060)


def test_sets_sent_one_after_another_add_up() -> None:
    found = load([response(order=0), response(order=1)], StatsSpec())
    assert found is not None
    assert found.wall_seconds == pytest.approx(0.080)


@pytest.mark.parametrize(
    ("limits", "late"),
    [
        pytest.param(StatsSpec(ttft_ms=10.0), 1, id="first token in time"),
        pytest.param(StatsSpec(ttft_ms=9.9), 2, id="first token late"),
        pytest.param(StatsSpec(tpot_ms=10.0), 1, id="tokens in time"),
        pytest.param(StatsSpec(tpot_ms=9.9), 2, id="tokens late"),
        pytest.param(StatsSpec(e2e_ms=40.0), 1, id="whole request in time"),
        pytest.param(StatsSpec(ttft_ms=10.0, e2e_ms=39.0), 2, id="one of two limits missed"),
    ],
)
def test_a_good_request_meets_every_limit_and_a_failed_one_meets_none(limits: StatsSpec, late: int) -> None:
    found = load([response(), failed()], limits)
    assert found is not None
    assert found.late == late
    assert found.failed == 1
    assert found.goodput == pytest.approx((2 - late) / 0.040)


def test_without_limits_there_is_no_goodput() -> None:
    found = load([response(refusals=2)], StatsSpec())
    assert found is not None
    assert (found.goodput, found.late, found.refusals) == (None, None, 2)


def test_gaps_between_chunks_are_told_whatever_they_hold() -> None:
    found = load([response(chunks=((1, 10), (5, 30), (1, 60)))], StatsSpec())
    assert found is not None
    assert found.icl_median == pytest.approx(25.0)
    assert found.chunks == 3


def test_an_arm_that_is_no_server_has_no_load() -> None:
    assert load([failed()], StatsSpec()) is None
