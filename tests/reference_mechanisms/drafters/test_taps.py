from __future__ import annotations

import pytest

from reference_mechanisms.drafters.taps import check_taps, evenly_spaced, from_inputs, low_middle_high
from reference_mechanisms.errors import DrafterError


@pytest.mark.parametrize(
    ("layers", "count", "taps"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (40, 5, (1, 10, 19, 28, 37)),
        (32, 5, (1, 8, 15, 22, 29)),
        (64, 5, (1, 16, 31, 46, 61)),
        (30, 5, (1, 8, 14, 20, 27)),
        (30, 3, (1, 14, 27)),
        (30, 2, (1, 27)),
        (30, 1, (15,)),
    ],
)
def test_default_taps_are_those_of_the_published_checkpoints(
    layers: int, count: int, taps: tuple[int, ...]
) -> None:
    assert evenly_spaced(layers, count) == taps


def test_both_index_conventions_name_the_same_layers() -> None:
    assert from_inputs((2, 17, 32, 47, 62)) == (1, 16, 31, 46, 61)
    assert low_middle_high(32) == (1, 15, 28)


@pytest.mark.parametrize(
    ("taps", "message"),
    [
        pytest.param((1, 29), "tap 29 is not among the layers -1..28", id="last layer"),
        pytest.param((-2,), "tap -2", id="negative"),
        pytest.param((3, 3), r"tapped twice in \[3, 3\]", id="twice"),
    ],
)
def test_a_wrong_tap_is_refused_by_number(taps: tuple[int, ...], message: str) -> None:
    with pytest.raises(DrafterError, match=message):
        check_taps(taps, 30, "drafter")
    assert check_taps((-1, 28), 30, "drafter") == (-1, 28)
