from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_mechanisms.weight12.layout import MAX_PALETTES, RAW_ROW
from reference_mechanisms.weight12.palette import choose_palettes, is_canonical, members, number_of, table

SETS = st.sets(st.integers(0, 127), min_size=1, max_size=8).map(
    lambda classes: sum(1 << member for member in classes)
)


def of(*classes: int) -> int:
    return sum(1 << member for member in classes)


@given(st.dictionaries(SETS, st.integers(1, 1000), max_size=60))
def test_every_set_has_a_palette_that_covers_it_and_is_the_first(counts: dict[int, int]) -> None:
    palettes = choose_palettes(counts)
    assert all(palette.bit_count() <= 8 for palette in palettes)
    assert len(set(palettes)) == len(palettes) <= len(counts)
    assert is_canonical(table(palettes))
    for found in counts:
        number = number_of(found, palettes)
        assert not found & ~palettes[number]
        assert all(found & ~palette for palette in palettes[:number])


@given(st.dictionaries(SETS, st.integers(1, 5), max_size=30))
def test_the_order_of_the_counts_does_not_matter(counts: dict[int, int]) -> None:
    turned = dict(reversed(counts.items()))
    assert choose_palettes(counts) == choose_palettes(turned)


def test_sets_that_fit_together_share_a_palette() -> None:
    assert choose_palettes({of(55, 56, 57): 90, of(57, 58): 9, of(50): 1}) == (of(50, 55, 56, 57, 58),)


def test_a_palette_is_filled_to_its_eighth_class() -> None:
    assert choose_palettes({of(*range(50, 57)): 9, of(40): 1}) == (of(40, *range(50, 57)),)
    assert len(choose_palettes({of(*range(50, 58)): 9, of(40): 1})) == 2


def test_a_full_palette_starts_another_for_the_frequent_sets_first() -> None:
    common, odd = of(*range(50, 58)), of(0, 50)
    assert choose_palettes({odd: 1, common: 99}) == (odd, common)
    crowd = {of(*range(8 * at, 8 * at + 8)): 10 for at in range(16)} | {
        of(at, at + 64): 1 for at in range(64)
    }
    assert set(choose_palettes(crowd)) >= {found for found, count in crowd.items() if count == 10}


def test_there_are_never_more_palettes_than_numbers_for_them() -> None:
    draw = np.random.default_rng(0)
    counts = {of(*draw.choice(128, 8, replace=False).tolist()): 1 + at for at in range(400)}
    palettes = choose_palettes(counts)
    assert len(palettes) == MAX_PALETTES
    assert sum(number_of(found, palettes) == RAW_ROW for found in counts) == len(counts) - MAX_PALETTES
    assert all(number_of(found, palettes) != RAW_ROW for found, count in counts.items() if count > 145)


def test_members_ascend_and_the_tail_of_a_row_repeats_the_last() -> None:
    assert list(members(of(127, 0, 64))) == [0, 64, 127]
    assert table((of(3, 1),)).tolist() == [[1, 3, 3, 3, 3, 3, 3, 3]]
    assert table(()).tolist() == [[0] * 8]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [[2, 1, 3, 4, 5, 6, 7, 8]],
        [[1, 1, 2, 2, 2, 2, 2, 2]],
        [[1, 2, 3, 4, 5, 6, 7, 128]],
        [[1] * 8, [1] * 8],
        [[2] * 8, [1] * 8],
        [[at // 2, 64 + at % 2] + [64 + at % 2] * 6 for at in range(256)],
    ],
    ids=["none", "unsorted row", "repeated head", "no class", "twice", "unsorted rows", "too many"],
)
def test_other_tables_are_not_canonical(rows: list[list[int]]) -> None:
    assert not is_canonical(np.array(rows, np.uint8).reshape(-1, 8))
