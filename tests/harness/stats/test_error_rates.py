"""Bounds on a rate, and the test of near ties against stock's own."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from harness.errors import UndefinedMetric
from harness.stats.error_rates import blind_below, one_sided_rate_test, rate_bound, rule_of_three


def test_rule_of_three_is_three_over_n() -> None:
    assert rule_of_three(3000) == 0.001
    assert rule_of_three(2) == 1.0
    with pytest.raises(UndefinedMetric, match="no position was judged"):
        rule_of_three(0)


@pytest.mark.parametrize(("positions", "rate"), [(59, 0.05), (299, 0.01), (2995, 0.001)])
def test_zero_cases_bound_the_rate_just_below_the_usual_landmarks(positions: int, rate: float) -> None:
    assert rate_bound(0, positions) < rate < rate_bound(0, positions - 1)
    assert rate_bound(0, positions) < rule_of_three(positions)


def test_rate_bound_inverts_the_binomial_tail() -> None:
    bound = rate_bound(4, 200)
    assert scipy_stats.binom.cdf(4, 200, bound) == pytest.approx(0.05)
    assert rate_bound(7, 7) == 1.0


def _exact_p(k: int, n: int, s: int, m: int) -> Fraction:
    """P(at least k of the k + s disagreements fall on the arm's n of n + m positions)."""
    total = k + s
    ways = sum(comb(n, x) * comb(m, total - x) for x in range(k, total + 1))
    return Fraction(ways, comb(n + m, total))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.data())
def test_p_value_is_the_hypergeometric_tail(n: int, m: int, data: st.DataObject) -> None:
    k, s = data.draw(st.integers(0, n)), data.draw(st.integers(0, m))
    assert one_sided_rate_test(k, n, s, m).p_value == pytest.approx(float(_exact_p(k, n, s, m)), abs=1e-12)


def test_equal_rates_pass_and_a_tenfold_rate_fails() -> None:
    assert one_sided_rate_test(20, 10_000, 21, 10_000).passed
    failing = one_sided_rate_test(40, 10_000, 4, 10_000)
    assert not failing.passed
    assert failing.p_value < 1e-6


def test_no_near_tie_always_passes_with_certainty() -> None:
    found = one_sided_rate_test(0, 1500, 0, 300)
    assert (found.passed, found.p_value) == (True, 1.0)


def test_a_rate_below_stocks_passes() -> None:
    assert one_sided_rate_test(1, 10_000, 50, 10_000).p_value > 0.99


@pytest.mark.parametrize(("near_ties", "passed"), [(6, True), (7, False)])
def test_against_a_stock_that_never_disagreed_seven_near_ties_of_equal_size_fail(
    near_ties: int, passed: bool
) -> None:
    """(1/2) ** 6 = 0.0156, (1/2) ** 7 = 0.0078."""
    assert one_sided_rate_test(near_ties, 100_000, 0, 100_000).passed is passed


def test_a_stock_measured_on_few_positions_excuses_more_and_the_blindness_is_told() -> None:
    few, many = blind_below(1500, 0, 300), blind_below(1500, 0, 15_000)
    assert (few, many) == (26, 2)
    assert one_sided_rate_test(25, 1500, 0, 300).passed
    assert not one_sided_rate_test(26, 1500, 0, 300).passed
    assert blind_below(3, 0, 1000) == 1
    assert blind_below(10, 1, 1) is None


@pytest.mark.parametrize(("positions", "stock_positions", "words"), [(0, 5, "arm"), (5, 0, "stock against")])
def test_a_side_without_positions_is_undefined_and_never_a_pass(
    positions: int, stock_positions: int, words: str
) -> None:
    with pytest.raises(UndefinedMetric, match=words):
        one_sided_rate_test(0, positions, 0, stock_positions)


def test_more_cases_than_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="6 cases in 5 positions"):
        one_sided_rate_test(6, 5, 0, 5)


@pytest.mark.parametrize("rate", [0.0005, 0.002, 0.02])
@pytest.mark.parametrize("sizes", [(1500, 300), (1500, 1500), (1500, 6000)], ids=str)
def test_type_one_error_stays_at_or_below_the_level(rate: float, sizes: tuple[int, int]) -> None:
    """Exact, no sampling: sum over all outcomes that fail under one common rate."""
    positions, stock_positions = sizes
    tail = 12 * max(1.0, rate * max(sizes)) ** 0.5
    arm = np.arange(int(rate * positions + tail) + 2)
    stock = np.arange(int(rate * stock_positions + tail) + 2)
    weights = np.outer(
        scipy_stats.binom.pmf(arm, positions, rate), scipy_stats.binom.pmf(stock, stock_positions, rate)
    )
    assert weights.sum() > 1.0 - 1e-6
    p_values = np.asarray(
        scipy_stats.hypergeom.sf(
            arm[:, None] - 1, positions + stock_positions, arm[:, None] + stock[None, :], positions
        )
    )
    spot = one_sided_rate_test(int(arm[-1]), positions, int(stock[1]), stock_positions)
    assert spot.p_value == pytest.approx(p_values[-1, 1], abs=1e-12)
    assert weights[p_values <= 0.01].sum() <= 0.01
