"""`encode` and `decode` together, and the stored arrays against the documented layout."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from reference_mechanisms.weight12.container import fault
from reference_mechanisms.weight12.decode import decode, decode_blocks
from reference_mechanisms.weight12.encode import encode
from reference_mechanisms.weight12.layout import RAW_ROW, Packed, array_shapes, groups, stored_bytes
from tests.reference_mechanisms.weight12 import samples
from tests.reference_mechanisms.weight12.samples import Bits, Shape

PATTERNS = np.arange(1 << 16, dtype=np.uint16)
SHAPES: tuple[Shape, ...] = (
    (),
    (0,),
    (1,),
    (100,),
    (0, 300),
    (3, 0),
    (7, 1),
    (5, 63),
    (5, 64),
    (5, 65),
    (3, 100),
    (2, 97),
    (600, 256),
    (2, 3, 320),
    (2, 2, 2, 33),
    (1, 40_000),
)


def held(bits: Bits) -> Packed:
    """Encode; hold what every encoding must keep."""
    packed = encode(bits)
    assert fault(packed) is None
    sizes = array_shapes(bits.shape, len(packed.ptab), len(packed.rawrow))
    assert {suffix: array.shape for suffix, array in packed.arrays()} == sizes
    assert packed.stored_bytes == stored_bytes(bits.shape, len(packed.ptab), len(packed.rawrow))
    found = decode(packed)
    assert found.shape == bits.shape
    assert found.dtype == np.uint16
    assert np.array_equal(found, bits)
    return packed


def as_documented(packed: Packed, row: int, column: int) -> int:
    """One weight read by the README's words alone."""
    if row in packed.rawrow.tolist():
        return int(packed.rawval[packed.rawrow.tolist().index(row), column])
    q, j = divmod(column, 64)
    octet = int(packed.code[row, 32 * q + j % 32])
    nibble = octet & 0x0F if j < 32 else octet >> 4
    member = int(packed.ptab[packed.pidx[row, q], nibble & 7])
    return (nibble >> 3) << 15 | member << 8 | int(packed.lo[row, column])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", samples.KINDS)
def test_every_kind_of_tensor_comes_back(kind: str, shape: Shape) -> None:
    held(samples.KINDS[kind](shape, 1))


@pytest.mark.parametrize("columns", [1, 8, 64, 100, 128, 256, 65536])
def test_every_pattern_comes_back(columns: int) -> None:
    bits = PATTERNS[: len(PATTERNS) // columns * columns].reshape(-1, columns)
    held(bits)
    held(np.random.default_rng(0).permutation(PATTERNS)[: bits.size].reshape(bits.shape))


def test_every_pattern_comes_back_without_raw_rows_if_its_group_has_few_classes() -> None:
    assert len(held(PATTERNS.reshape(128, 512)).rawrow) == 0  # ascending: 2 classes in each 512


@given(
    arrays.arrays(
        np.uint16,
        arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=140),
        elements=st.integers(0, 65535),
    )
)
@settings(max_examples=80, deadline=None)
def test_any_array_comes_back(bits: Bits) -> None:
    held(bits)


@given(
    st.lists(st.integers(0, 127), min_size=1, max_size=12, unique=True),
    st.integers(1, 40),
    st.integers(1, 300),
    st.integers(0, 1 << 32),
)
@settings(max_examples=80, deadline=None)
def test_any_choice_of_classes_comes_back(classes: list[int], rows: int, columns: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    high = draw.choice(np.array(classes, np.uint16), (rows, columns))
    bits = (high | draw.integers(0, 2, high.shape, dtype=np.uint16) << 7) << 8
    packed = held((bits | draw.integers(0, 256, bits.shape, dtype=np.uint16)).astype(np.uint16))
    if len({0, *classes}) <= 8:
        assert len(packed.rawrow) == 0


@pytest.mark.parametrize("kind", samples.KINDS)
@pytest.mark.parametrize("shape", [(9, 200), (4, 128)], ids=str)
def test_stored_arrays_are_the_documented_ones(kind: str, shape: Shape) -> None:
    bits = samples.KINDS[kind](shape, 2)
    packed = encode(bits)
    for row, column in np.ndindex(*shape):
        assert as_documented(packed, row, column) == bits[row, column]


def test_the_worked_example_of_the_readme() -> None:
    bits = np.zeros((1, 64), np.uint16)
    bits[0, 0], bits[0, 1], bits[0, 32] = 0x3C23, 0xBD4D, 0x8000  # 0.00995, -0.0501, -0
    packed = held(bits)
    assert packed.ptab.tolist() == [[0x00, 0x3C, 0x3D, 0x3D, 0x3D, 0x3D, 0x3D, 0x3D]]
    assert packed.pidx.tolist() == [[0]]
    assert packed.lo[0, :2].tolist() == [0x23, 0x4D]
    assert packed.code[0, :2].tolist() == [0x81, 0x0A]


def test_rows_are_raw_one_by_one_and_the_rest_stays_packed() -> None:
    bits = samples.one_spread_row((300, 512))
    packed = held(bits)
    assert packed.rawrow.tolist() == [150]
    assert np.array_equal(packed.rawval[0], bits[150])
    assert (packed.pidx[150] == RAW_ROW).all()
    assert not packed.lo[150].any()
    assert not packed.code[150].any()
    assert (np.delete(packed.pidx, 150, axis=0) != RAW_ROW).all()


@pytest.mark.parametrize(
    ("kind", "bits_a_weight"), [("normal", 12.126), ("heavy_tailed", 12.25), ("zero_rich", 12.4)]
)
def test_matrices_like_those_of_models_cost_little_more_than_12_bits(kind: str, bits_a_weight: float) -> None:
    bits = samples.KINDS[kind]((2048, 2048), 3)
    packed = held(bits)
    assert 8 * packed.stored_bytes / bits.size < bits_a_weight
    assert (len(packed.rawrow) > 0) == (kind != "normal")


def test_padding_is_positive_zero_even_beside_nan() -> None:
    packed = held(samples.all_nan((20, 70)))
    assert len(packed.rawrow) == 0
    wide = Packed(
        shape=(20, 128),
        **{suffix: array for suffix, array in packed.arrays() if suffix != "rawval"},  # type: ignore[arg-type]
        rawval=np.empty((0, 128), np.uint16),
    )
    assert not decode(wide)[:, 70:].any()


def test_equal_tensors_give_equal_bytes_in_any_memory_layout() -> None:
    bits = samples.zero_rich((130, 256))
    twin = np.asfortranarray(bits)
    for (_, one), (_, two) in zip(encode(bits).arrays(), encode(twin).arrays(), strict=True):
        assert np.array_equal(one, two)


def test_more_sets_than_palettes_make_raw_rows_and_still_come_back() -> None:
    draw = np.random.default_rng(0)
    classes = np.array([draw.choice(128, 8, replace=False) for _ in range(600)], np.uint16)
    packed = held((np.repeat(classes, 8, axis=1) << 8).astype(np.uint16))  # a set of its own in each row
    assert len(packed.ptab) == 255
    assert len(packed.rawrow) == 600 - 255


def test_the_sets_of_most_groups_get_the_palettes() -> None:
    draw = np.random.default_rng(0)
    sets = np.array([draw.choice(64, 8, replace=False) for _ in range(855)], np.uint16)
    sets[600:] += 64
    rows = np.concatenate((sets[:600], sets[600:].repeat(3, axis=0)))
    packed = held((np.repeat(rows, 8, axis=1) << 8).astype(np.uint16))
    assert packed.rawrow.tolist() == list(range(600))


def test_blocks_are_the_rows_in_order_and_small() -> None:
    bits = samples.one_spread_row((1000, 320))
    starts, parts = zip(*decode_blocks(encode(bits)), strict=True)
    assert len(parts) > 2
    assert list(starts) == [0, *np.cumsum([len(part) for part in parts])[:-1]]
    assert np.array_equal(np.concatenate(parts), bits)


def test_groups_of_64_columns() -> None:
    assert [groups(columns) for columns in (0, 1, 64, 65, 4096)] == [0, 1, 1, 2, 64]
    assert math.prod(array_shapes((2, 3, 65), 4, 5)["rawval"]) == 5 * 65
