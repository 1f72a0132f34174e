from __future__ import annotations

import pytest

from harness.load.overhead import TOKENS, measure_overhead
from harness.measure.worker import SystemClock


@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_client_alone_follows_far_more_tokens_than_an_engine_gives(concurrency: int) -> None:
    found = measure_overhead(SystemClock(), concurrency)
    assert found.tokens == 2 * concurrency * TOKENS
    assert found.microseconds_per_token == pytest.approx(1e6 / found.chunks_per_second)
    assert found.chunks_per_second > 1000.0
