"""The order of units, written down a second time, lane by lane, from the text of `unit.cuh`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.arrange import Arranged, arrange, arrange_raw
from reference_mechanisms.kernels.weight12.packing import pack
from reference_mechanisms.kernels.weight12.schedule import STRIP, TILE
from reference_mechanisms.weight12.layout import RAW_ROW
from tests.reference_mechanisms.weight12 import samples

SHAPES = ((64, 128), (1, 256), (65, 300), (130, 1000))
PLANE = 512


def tensor(bits: samples.Bits) -> Tensor:
    return torch.from_numpy(bits.copy()).view(torch.bfloat16)


class Bytes(NamedTuple):
    """An arranged matrix as a lane reads it: bytes, no tensors."""

    units: list[list[bytes]]  # of strip and tile
    numbers: npt.NDArray[Any] | None
    palettes: npt.NDArray[Any] | None
    highs: npt.NDArray[Any] | None


def bytes_of(arranged: Arranged) -> Bytes:
    units = [[tile.tobytes() for tile in strip] for strip in arranged.units.numpy()]
    others = (arranged.numbers, arranged.palettes, arranged.highs)
    return Bytes(units, *(None if one is None else one.numpy() for one in others))


def packed_weight(arranged: Bytes, strip: int, tile: int, row: int, column: int) -> int:
    """The pattern that the lane which owns (row, column) of a unit decodes."""
    assert arranged.numbers is not None
    assert arranged.palettes is not None
    unit = arranged.units[strip][tile]
    piece, half, g = row // 16, row // 8 % 2, row % 8
    t, inside = column // 16, column % 16
    lane, start = 4 * g + t, piece * 3 * PLANE
    low = unit[start + half * PLANE + 16 * lane + inside]
    at = start + 2 * PLANE + 16 * lane + 8 * half
    number = int(arranged.numbers[strip, tile, 4 * g + 2 * piece + half])
    if number == RAW_ROW:
        assert arranged.highs is not None
        which = int.from_bytes(unit[at : at + 4], "little")
        return int(arranged.highs[which, 16 * t + inside]) << 8 | low
    at += 4 * (inside // 8)
    word, i = int.from_bytes(unit[at : at + 4], "little"), inside % 8
    sign = word >> (8 * i + 7 if i < 4 else 8 * (i - 4) + 3) & 1
    return sign << 15 | int(arranged.palettes[number, word >> 4 * i & 7]) << 8 | low


def raw_weight(arranged: Bytes, strip: int, tile: int, row: int, column: int) -> int:
    unit = arranged.units[strip][tile]
    piece, half, g = row // 16, row // 8 % 2, row % 8
    t, inside = column // 16, column % 16
    at = (piece * 4 + 2 * half + inside // 8) * PLANE + 16 * (4 * g + t) + 2 * (inside % 8)
    return int.from_bytes(unit[at : at + 2], "little")


def read_back(arranged: Arranged) -> samples.Bits:
    """Every weight [rows, columns], each found by its row and column."""
    find, lanes = raw_weight if arranged.raw else packed_weight, bytes_of(arranged)
    out = np.zeros((arranged.rows, arranged.columns), np.uint16)
    for row in range(arranged.rows):
        for column in range(arranged.columns):
            out[row, column] = find(lanes, row // STRIP, column // TILE, row % STRIP, column % TILE)
    return out


KINDS = (samples.normal, samples.zero_rich, samples.non_finite, samples.one_spread_row)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_weight_lies_where_the_kernel_looks_for_it(
    kind: Callable[[samples.Shape, int], samples.Bits], shape: samples.Shape
) -> None:
    bits = kind(shape, 1)
    np.testing.assert_array_equal(read_back(arrange(pack(tensor(bits)), shape[1])), bits)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_twin_holds_bf16_in_the_same_order(shape: samples.Shape) -> None:
    bits = samples.random_bits(shape, 2)
    np.testing.assert_array_equal(read_back(arrange_raw(tensor(bits))), bits)


def test_padding_is_zero() -> None:
    bits = samples.normal((65, 300), 3)
    arranged = arrange_raw(tensor(bits))
    whole = Arranged(
        rows=arranged.split.rows,
        columns=arranged.split.tiles * TILE,
        split=arranged.split,
        units=arranged.units,
    )
    assert not read_back(whole)[65:].any()
    assert not read_back(whole)[:, 300:].any()


def test_a_raw_row_costs_only_the_groups_that_no_palette_covers() -> None:
    bits = samples.normal((64, 1024), 4)
    bits[7, 64:128] = samples.random_bits((64,), 5)
    packed = pack(tensor(bits))
    assert packed["rawrow"].tolist() == [7]
    arranged = arrange(packed, 1024)
    assert arranged.highs is not None
    assert arranged.highs.shape == (1, 64)
    assert arranged.numbers is not None
    assert (arranged.numbers == RAW_ROW).sum() == 1
    np.testing.assert_array_equal(read_back(arranged), bits)


def test_what_a_product_reads_is_counted() -> None:
    arranged = arrange(pack(tensor(samples.normal((4096, 1024), 5))), 1024)
    assert arranged.highs is None
    assert arranged.stored_bytes == 4096 * 1024 * 1.5 + 4096 * 16 + 2048
