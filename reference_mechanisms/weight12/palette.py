"""Palettes: few sets of eight exponent classes that cover what the groups of a tensor use.

A class is the 7 high bits of a bf16 exponent; a set of classes is an int with bit c for class c.
The choice is greedy and deterministic: equal counts give equal palettes on every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from reference_mechanisms.weight12.layout import CLASSES, MAX_PALETTES, RAW_ROW, Bytes

CANDIDATES = 2048  # most frequent sets that may shape palettes; rarer ones are covered or raw
SHARES = 840  # divisible by 1..8: gains stay whole numbers


def choose_palettes(counts: Mapping[int, int]) -> tuple[int, ...]:
    """Palettes for sets of at most 8 classes.

    The most frequent set not yet covered starts a palette; classes join it by how much they help
    the sets that still fit, until it is full. At most 255 palettes; sets beyond them stay raw.

    Args:
        counts: how many groups use each set.

    Returns:
        The palettes in the order of their table rows.
    """
    ranked = sorted(counts, key=lambda found: (-counts[found], found))[:CANDIDATES]
    left = {found: counts[found] for found in ranked}
    palettes: list[int] = []
    while left and len(palettes) < MAX_PALETTES:
        palette = _grown(next(iter(left)), left)
        palettes.append(palette)
        left = {found: count for found, count in left.items() if found & ~palette}
    return tuple(sorted(palettes, key=_row))


def _grown(palette: int, left: Mapping[int, int]) -> int:
    while palette.bit_count() < CLASSES:
        gains: dict[int, int] = {}
        for found, count in left.items():
            missing = found & ~palette
            if missing and (palette | found).bit_count() <= CLASSES:
                gain = count * SHARES // missing.bit_count()
                for member in members(missing):
                    gains[member] = gains.get(member, 0) + gain
        if not gains:
            break
        palette |= 1 << max(gains, key=lambda member: (gains[member], -member))
    return palette


def number_of(found: int, palettes: Sequence[int]) -> int:
    """Number of the first palette that covers a set; `RAW_ROW` if none does."""
    return next((number for number, palette in enumerate(palettes) if not found & ~palette), RAW_ROW)


def members(found: int) -> Iterator[int]:
    """The classes of a set, ascending."""
    while found:
        yield (found & -found).bit_length() - 1
        found &= found - 1


def table(palettes: Sequence[int]) -> Bytes:
    """`ptab` [P, 8]: each row ascending, its unused tail repeats the last class; never empty."""
    rows = [_row(palette) for palette in palettes] or [(0,) * CLASSES]
    return np.array(rows, dtype=np.uint8)


def is_canonical(ptab: Bytes) -> bool:
    """Whether `ptab` is one that `table` can give: classes, ascending rows, rows sorted and unique."""
    rows = [tuple(row) for row in ptab.tolist()]
    return (
        1 <= len(rows) <= MAX_PALETTES
        and all(row == _row(sum({1 << member for member in row})) for row in rows)
        and all(member < 128 for row in rows for member in row)
        and all(one < two for one, two in itertools.pairwise(rows))
    )


def _row(palette: int) -> tuple[int, ...]:
    found = tuple(members(palette))
    return found + found[-1:] * (CLASSES - len(found))
