from __future__ import annotations

import pytest

from harness.stats.degenerate import degenerate

TEXT = list(range(1000, 1200))  # says something new all the time


def counting(times: int) -> list[int]:
    """A loop that counts while it turns: no period, and nothing new but the number."""
    return [token for n in range(times) for token in (*range(10, 30), 500 + n)]


@pytest.mark.parametrize("period", [1, 2, 31, 32])
def test_a_loop_at_the_end_is_degenerate_whatever_was_said_before(period: int) -> None:
    loop = [7 + n for n in range(period)] * 64
    assert degenerate(TEXT + loop[:64])
    assert degenerate(TEXT + loop[: 64 + period])


def test_a_token_that_stops_the_loop_hides_nothing() -> None:
    assert degenerate([*TEXT, *[5, 6] * 32, 2])


def test_a_loop_that_counts_is_degenerate() -> None:
    assert degenerate(counting(12))


@pytest.mark.parametrize(
    "token_ids",
    [
        pytest.param([], id="nothing"),
        pytest.param([5] * 63, id="too short to tell"),
        pytest.param(TEXT, id="text"),
        pytest.param([*TEXT, *[5, 6] * 31, 1], id="a short loop"),
        pytest.param([*TEXT, *[5, 6] * 40, *range(64)], id="a loop that ended"),
        pytest.param([*TEXT, *list(range(33)) * 3], id="a longer period"),
        pytest.param(TEXT[:100] * 2, id="each run twice"),
    ],
)
def test_everything_else_is_not(token_ids: list[int]) -> None:
    assert not degenerate(token_ids)
