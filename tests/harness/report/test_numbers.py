"""Numbers in words: rounding, absence, and the states of a verdict."""

from __future__ import annotations

import pytest

from harness.report import numbers
from harness.results import Interval
from tests.harness.report import build, pieces


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (pieces.interval(1.3456, 1.2912, 1.3987), "1.35x [1.29, 1.40]"),
        (pieces.interval(1.0, 1.0, 1.0), "1.00x"),
        (pieces.interval(2.0, 0.5, 12.5), "2.00x [0.50, 12.50]"),
        (pieces.interval(2.0, 0.5, 12.6), "2.00x (too little data for an interval)"),
        (None, "not measured"),
    ],
    ids=["an interval", "one by definition", "wide", "too wide to say anything", "absent"],
)
def test_a_ratio_carries_its_interval_unless_it_is_one_by_definition(
    found: Interval | None, shown: str
) -> None:
    assert numbers.ratio(found) == shown


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (numbers.rate(41.26), "41.3"),
        (numbers.length(1.75), "1.750"),
        (numbers.share(0.0213), "2.1 %"),
        (numbers.milliseconds(31.26), "31.3"),
        (numbers.probability(0.00347), "0.0035"),
        (numbers.logits(0.52341), "0.5234"),
        (numbers.percent(0.95), "95 %"),
        (numbers.percent(0.999), "99.9 %"),
    ],
)
def test_each_kind_of_number_has_one_rounding(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize(
    "absent",
    [
        numbers.rate(None),
        numbers.length(None),
        numbers.share(None),
        numbers.milliseconds(None),
        numbers.probability(None),
        numbers.speed_verdict(pieces.arm("stock", verdict=None)),
        numbers.stock_verdict(pieces.arm("stock", losslessness=None)),
    ],
)
def test_what_was_not_measured_is_never_a_zero(absent: str) -> None:
    assert absent == "not measured"


def test_a_check_has_three_states() -> None:
    assert [numbers.yes_no(state) for state in (True, False, None)] == ["yes", "NO", "no verdict"]
    assert [numbers.bitwise(state) for state in (True, False, None)] == ["yes", "no", "not captured"]


def test_a_stock_verdict_counts_near_ties_and_violations_apart() -> None:
    stock = build.violated().arms[1]
    assert numbers.stock_verdict(stock) == "violated (4 near ties, 27 violations)"
    assert numbers.stock_verdict(pieces.arm("ar")) == "exact"


def test_a_bound_names_its_positions_and_is_absent_in_words() -> None:
    assert numbers.bound(pieces.losslessness()) == (
        "error rate below 0.0005 per token at 95 % (3/N over 6000 distinct positions)"
    )
    assert numbers.bound(pieces.losslessness(error_bound=None)) == "no bound"
