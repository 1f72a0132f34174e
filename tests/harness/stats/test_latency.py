"""Latencies and bounds on their tails."""

from __future__ import annotations

import numpy as np
import pytest

from harness.errors import UndefinedMetric
from harness.stats.latency import latency, samples_for_tail, tail_bound
from tests.harness.stats.build import failed, response


def test_tpot_divides_by_the_tokens_after_the_first() -> None:
    found = latency([response(seconds=1.1, first=0.1, tokens=11)])
    assert found.ttft_median == pytest.approx(100.0)
    assert found.tpot_median == pytest.approx(100.0)
    assert found.e2e_median == pytest.approx(1100.0)


def test_medians_and_ninetieth_percentiles_are_over_responses() -> None:
    found = latency([response(f"p{n}", seconds=float(n), first=n / 10, tokens=3) for n in range(1, 12)])
    assert (found.e2e_median, found.e2e_p90) == pytest.approx((6000.0, 10000.0))
    assert (found.ttft_median, found.ttft_p90) == pytest.approx((600.0, 1000.0))
    assert found.tpot_p90 == pytest.approx(4500.0)


def test_a_response_of_one_token_has_no_tpot_and_failed_ones_no_latency() -> None:
    found = latency([response(seconds=1.0, first=1.0, tokens=1), failed()])
    assert found.tpot_median is None
    assert found.tpot_p90 is None
    assert found.e2e_median == 1000.0


def test_no_success_has_no_latency() -> None:
    with pytest.raises(UndefinedMetric, match="no request of the arm succeeded"):
        latency([failed()])


def test_p99_needs_299_values() -> None:
    assert samples_for_tail(0.99) == 299
    assert samples_for_tail(0.9) == 29
    with pytest.raises(UndefinedMetric, match="p99 has no 95% bound from 298 values; measure at least 299"):
        tail_bound(list(range(298)), 0.99)
    assert tail_bound(list(range(299)), 0.99).upper == 298


def test_the_bound_is_the_first_order_statistic_that_is_sure_enough() -> None:
    """n = 600, q = 0.99: P(Binomial < 598) = 0.938, P(Binomial < 599) = 0.983."""
    values = [float(n) for n in range(1, 601)]
    found = tail_bound(values[::-1], 0.99)
    assert found.upper == 599.0
    assert found.point == pytest.approx(np.quantile(values, 0.99))


def test_the_bound_covers_the_true_quantile_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    samples = rng.exponential(size=(3000, 400))
    truth = -np.log(0.05)
    uppers = np.array([tail_bound(sample.tolist(), 0.95).upper for sample in samples])
    assert 0.95 - 0.012 < np.mean(uppers >= truth) < 0.975
    points = np.array([tail_bound(sample.tolist(), 0.95).point for sample in samples])
    assert np.mean(points >= truth) < 0.6


@pytest.mark.parametrize(("quantile", "confidence"), [(0.0, 0.9), (1.0, 0.9), (0.9, 1.0)])
def test_quantiles_outside_zero_to_one_are_refused(quantile: float, confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        samples_for_tail(quantile, confidence)
