"""Verdicts and Holm's correction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.results import Interval
from harness.stats.equivalence import holm, is_equivalent, speed_verdict


def _interval(low: float, high: float, point: float | None = None) -> Interval:
    return Interval(
        point=(low * high) ** 0.5 if point is None else point,
        low=low,
        high=high,
        confidence=0.95,
        method="given",
        launches=3,
        blocks=5,
        prompts=40,
        resamples=4000,
    )


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        pytest.param(1.10, 1.30, "faster", id="wholly above 1"),
        pytest.param(0.70, 0.95, "slower", id="wholly below 1"),
        pytest.param(0.99, 1.01, "equivalent", id="inside the margin"),
        pytest.param(1.005, 1.015, "equivalent", id="above 1 but proven too small to matter"),
        pytest.param(0.985, 0.995, "equivalent", id="below 1 but proven too small to matter"),
        pytest.param(1.005, 1.03, "faster", id="above 1 and not proven small"),
        pytest.param(0.97, 0.995, "slower", id="below 1 and not proven small"),
        pytest.param(0.95, 1.05, "inconclusive", id="across 1 and wider than the margin"),
        pytest.param(0.99, 1.03, "inconclusive", id="across 1, over the upper margin"),
        pytest.param(0.97, 1.01, "inconclusive", id="across 1, under the lower margin"),
        pytest.param(1.00, 1.50, "inconclusive", id="touching 1"),
        pytest.param(1.50, 1.50, "inconclusive", id="no width, far from 1"),
        pytest.param(1.00, 1.00, "inconclusive", id="no width, at 1"),
    ],
)
def test_verdict_of_an_interval(low: float, high: float, verdict: str) -> None:
    assert speed_verdict(_interval(low, high), 0.02) == verdict


def test_no_width_is_no_proof_of_equivalence() -> None:
    assert not is_equivalent(_interval(1.0, 1.0), 0.02)


def test_the_margin_is_symmetric_on_the_log_ratio() -> None:
    assert is_equivalent(_interval(1 / 1.0199, 1.0199), 0.02)
    assert not is_equivalent(_interval(0.9801, 1.0), 0.02)  # 1 / 1.02 = 0.98039...
    assert not is_equivalent(_interval(1.0, 1.0201), 0.02)


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0), st.floats(0.001, 0.3))
def test_swapping_the_arms_swaps_faster_and_slower(one: float, other: float, margin: float) -> None:
    low, high = min(one, other), max(one, other)
    swapped = {"faster": "slower", "slower": "faster"}
    verdict = speed_verdict(_interval(low, high), margin)
    if all(
        abs(end - edge) > 1e-9 for end in (low, high) for edge in (1.0, 1.0 + margin, 1.0 / (1.0 + margin))
    ):
        assert speed_verdict(_interval(1.0 / high, 1.0 / low), margin) == swapped.get(verdict, verdict)


def test_holm_multiplies_by_the_hypotheses_left_and_never_falls() -> None:
    adjusted = holm({"code": 0.04, "math": 0.01, "chat": 0.03, "qa": 0.005})
    assert adjusted == pytest.approx({"code": 0.06, "math": 0.03, "chat": 0.06, "qa": 0.02})
    assert list(adjusted) == ["code", "math", "chat", "qa"]


def test_holm_of_one_is_itself_and_none_exceeds_one() -> None:
    assert holm({"all": 0.3}) == {"all": 0.3}
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}
