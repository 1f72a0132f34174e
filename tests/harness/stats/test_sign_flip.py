from __future__ import annotations

import math

import numpy as np
import pytest

from harness.errors import UndefinedMetric
from harness.results import BlockSpan
from harness.stats.sign_flip import launch_log_ratios, least_launches, sign_flip_p


def test_launches_that_all_gain_give_the_smallest_p_value_there_is() -> None:
    assert sign_flip_p([0.1] * 6) == 2**-6
    assert sign_flip_p([0.1, 0.2, 0.3]) == 1 / 8
    assert sign_flip_p([-0.1] * 6) == 1.0


def test_a_gain_below_the_limit_is_none() -> None:
    gains = [0.04, 0.05, 0.06, 0.05, 0.04, 0.06]
    assert sign_flip_p(gains, math.log1p(0.02)) == 2**-6
    assert sign_flip_p(gains, math.log1p(0.10)) == 1.0


def test_every_pattern_counts_once() -> None:
    """Means of (3, -1): 2, 4, -4, -2 over two; two of four reach the one seen."""
    assert sign_flip_p([3.0, -1.0]) == 0.5


def test_many_launches_are_drawn_and_agree_with_the_whole_count() -> None:
    rng = np.random.default_rng(3)
    values = list(rng.normal(0.01, 0.03, size=16))
    exact = sign_flip_p(values)
    drawn = sign_flip_p([*values, 0.0])  # a zero changes no mean's place
    assert drawn == pytest.approx(exact, abs=0.01)


def test_the_level_holds_when_nothing_is_gained_and_launches_differ() -> None:
    rng = np.random.default_rng(1)
    wrong = sum(sign_flip_p(list(rng.standard_t(3, size=8) * 0.02)) <= 0.05 for _ in range(2000))
    assert 0.035 < wrong / 2000 < 0.065


@pytest.mark.parametrize(("level", "launches"), [(0.5, 1), (0.025, 6), (1 / 64, 6), (0.0025, 9)])
def test_fewest_launches(level: float, launches: int) -> None:
    assert least_launches(level) == launches
    assert sign_flip_p([0.1] * launches) <= level


def test_nothing_measured_has_no_p_value() -> None:
    with pytest.raises(UndefinedMetric):
        sign_flip_p([])
    with pytest.raises(UndefinedMetric):
        sign_flip_p([math.nan])


def test_the_ratio_of_a_launch_sums_its_blocks_and_needs_both_arms() -> None:
    spans = [
        BlockSpan(launch=launch, block=block, arm=arm, started_at=0.0, busy_seconds=seconds, tokens=1)
        for launch, block, arm, seconds in [
            (0, 0, "stock", 3.0),
            (0, 1, "stock", 5.0),
            (0, 0, "x", 1.0),
            (0, 1, "x", 3.0),
            (1, 0, "stock", 4.0),
        ]
    ]
    assert launch_log_ratios(spans, "stock", "x") == [pytest.approx(math.log(2.0))]
