from __future__ import annotations

import numpy as np
import pytest
import torch

from reference_mechanisms.weight12.encode import encode
from reference_mechanisms.weight12.planes import Planes, concatenate, from_packed, zeros
from tests.reference_mechanisms.weight12 import samples
from tests.reference_mechanisms.weight12.samples import Bits

SHAPES = [(192, 576), (70, 100), (1, 1), (5, 65), (300, 256)]


def planes(bits: Bits) -> Planes:
    return from_packed(encode(bits))


def patterns(weights: torch.Tensor) -> Bits:
    assert weights.dtype == torch.bfloat16
    return np.asarray(weights.view(torch.uint16).numpy())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", samples.KINDS)
def test_every_weight_is_decoded_bit_for_bit(kind: str, shape: tuple[int, int]) -> None:
    bits = samples.KINDS[kind](shape, 5)
    assert np.array_equal(patterns(planes(bits).decode()), bits)


def test_large_matrices_are_decoded_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reference_mechanisms.weight12.planes.BLOCK", 1000)
    bits = samples.one_spread_row((90, 130), 6)
    assert np.array_equal(patterns(planes(bits).decode()), bits)


@pytest.mark.parametrize("kind", samples.KINDS)
def test_looked_up_rows_are_those_of_the_matrix(kind: str) -> None:
    bits = samples.KINDS[kind]((90, 130), 6)
    ids = torch.tensor([[0, 45, 89], [45, 3, 0]])
    assert np.array_equal(patterns(planes(bits).gather(ids)), bits[ids.numpy()])
    assert planes(bits).gather(ids[:0]).shape == (0, 3, 130)


@pytest.mark.parametrize("index", [[], [3], [89, 45, 0, 45], list(range(40, 60))], ids=str)
@pytest.mark.parametrize("kind", samples.KINDS)
def test_any_rows_can_be_taken(kind: str, index: list[int]) -> None:
    bits = samples.KINDS[kind]((90, 130), 7)
    rows = torch.tensor(index, dtype=torch.int64)
    found = planes(bits).take_rows(rows)
    assert np.array_equal(patterns(found.decode()), bits[index])
    assert found.take_rows(torch.arange(found.rows)).rawrow.tolist() == found.rawrow.tolist()


@pytest.mark.parametrize("span", [(0, 300), (0, 64), (64, 192), (128, 300), (256, 300)], ids=str)
@pytest.mark.parametrize("kind", samples.KINDS)
def test_columns_can_be_cut_at_groups(kind: str, span: tuple[int, int]) -> None:
    bits = samples.KINDS[kind]((20, 300), 8)
    found = planes(bits).take_columns(*span)
    assert np.array_equal(patterns(found.decode()), bits[:, slice(*span)])


@pytest.mark.parametrize(
    "span", [(1, 64), (0, 63), (32, 96), (64, 299), (64, 0), (64, 64), (0, 320)], ids=str
)
def test_a_cut_inside_a_group_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="multiples of 64 only"):
        planes(samples.normal((20, 300))).take_columns(*span)


def test_matrices_are_joined_with_their_palettes_and_raw_rows() -> None:
    kinds = ("normal", "heavy_tailed", "zero_rich", "one_spread_row", "non_finite", "normal")
    parts = [samples.KINDS[kind]((64 + seed, 192), seed) for seed, kind in enumerate(kinds)]
    found = concatenate([planes(part) for part in parts])
    assert found is not None
    assert np.array_equal(patterns(found.decode()), np.concatenate(parts))
    assert len(found.ptab) < sum(len(planes(part).ptab) for part in parts)
    assert len(found.rawrow)


def test_too_many_palettes_are_told() -> None:
    draw = np.random.default_rng(0)

    def wide(seed: int) -> Bits:
        """Each group has eight classes of its own."""
        classes = np.array([draw.permutation(128)[:8] for _ in range(200)])
        high = np.repeat(classes, 8, axis=1).astype(np.uint16)
        return np.asarray(high << 8 | seed, np.uint16)

    parts = [planes(wide(seed)) for seed in range(2)]
    assert all(len(part.ptab) > 128 for part in parts)
    assert concatenate(parts) is None


def test_parts_of_other_widths_are_no_matrix() -> None:
    with pytest.raises(ValueError, match="cannot be one matrix"):
        concatenate([zeros(2, 64), zeros(2, 128)])


def test_zeros_are_plus_zero_also_among_others() -> None:
    bits = samples.non_finite((30, 192), 9)
    found = concatenate([planes(bits), zeros(34, 192)])
    assert found is not None
    assert np.array_equal(patterns(found.decode()), np.concatenate((bits, np.zeros((34, 192), np.uint16))))


def test_the_size_is_that_of_the_format() -> None:
    packed = encode(samples.heavy_tailed((256, 320), 1))
    assert from_packed(packed).stored_bytes == packed.stored_bytes


def test_only_matrices_are_taken() -> None:
    with pytest.raises(ValueError, match="a matrix, not a tensor of shape"):
        from_packed(encode(samples.normal((2, 3, 64))))
