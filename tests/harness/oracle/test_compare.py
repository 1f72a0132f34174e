from __future__ import annotations

import pytest

from harness.oracle.compare import differences
from harness.results import StockNoise


def lines(claimed: object, found: object) -> list[str]:
    return list(differences(claimed, found, "x", "found"))


@pytest.mark.parametrize(
    ("claimed", "found"), [(1.0, 1.0 + 1e-9), (1, 1.0), (None, None), ("a", "a"), ((1, 2.0), [1, 2.0])]
)
def test_equal_values_have_no_difference(claimed: object, found: object) -> None:
    assert lines(claimed, found) == []


@pytest.mark.parametrize(
    ("claimed", "found", "line"),
    [
        (1.0, 1.0001, "`x` is 1.0, found 1.0001"),
        (None, 0.0, "`x` is None, found 0.0"),
        (True, 1, "`x` is True, found 1"),
        (1, True, "`x` is 1, found True"),
        ({"a": 1}, {"a": 2}, "`x.a` is 1, found 2"),
        ({"a": 1}, {}, "`x.a` is 1, found None"),
        ([1, 2], [1, 3], "`x[1]` is 2, found 3"),
        ([1], [1, 2], "`x` is [1], found [1, 2]"),
    ],
)
def test_a_difference_is_named_by_its_path(claimed: object, found: object, line: str) -> None:
    assert lines(claimed, found) == [line]


def test_records_are_compared_field_by_field() -> None:
    one, other = StockNoise(disagreements=1, positions=9), StockNoise(disagreements=2, positions=9)
    assert lines(one, other) == ["`x.disagreements` is 1, found 2"]
