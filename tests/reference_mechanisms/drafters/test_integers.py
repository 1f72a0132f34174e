from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference_mechanisms.drafters.integers import GROUP, Bits, group_of, restore, scale


def matrix(rows: int = 5, columns: int = 2 * GROUP, spread: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * spread


def error(bits: Bits, weights: Tensor) -> Tensor:
    return (restore(scale(weights, bits), torch.float64) - weights.double()).abs()


def test_eight_bits_are_off_by_half_a_step_of_their_own_row() -> None:
    weights = matrix() * torch.tensor([1.0, 10.0, 0.1, 3.0, 1000.0])[:, None]
    step = weights.abs().amax(-1, keepdim=True) / 127
    assert bool((error(8, weights) <= 0.57 * step).all())  # half a step, and the rounding of the scale
    assert bool((error(8, weights).amax(-1) >= 0.3 * step[:, 0]).all())


def test_four_bits_are_close_in_the_mean_of_their_own_group() -> None:
    weights = matrix(rows=64)
    weights[:, :GROUP] *= 100
    for first in (0, GROUP):
        part = error(4, weights)[:, first : first + GROUP]
        share = part.norm() / weights[:, first : first + GROUP].norm()
        assert 0.03 < float(share) < 0.12


def test_a_cut_is_taken_only_where_it_pays() -> None:
    weights = torch.full((1, GROUP), 0.9)
    weights[0, 0] = 1.0
    plain = torch.full((1, GROUP), 0.5)
    assert float(error(4, plain).max()) < 1e-3  # the group stands exactly on a step
    cut = restore(scale(weights, 4), torch.float64)
    uncut = (weights.double() / (1 / 7)).round() / 7
    assert (cut - weights).square().sum() < (uncut - weights).square().sum()


def test_integers_come_back_as_they_were_stored() -> None:
    integers = torch.arange(-127, 128, dtype=torch.float32)[None].repeat(2, 1) * 0.25
    assert torch.equal(restore(scale(integers, 8), torch.float32), integers)
    nibbles = (torch.arange(2 * GROUP) % 15 - 7).float().repeat(3, 1)
    scaled = scale(nibbles, 4)
    assert torch.equal(restore(scaled, torch.float32), nibbles)
    assert scaled.integers.shape == (3, GROUP)
    assert scaled.integers[0, 0].item() == (-7 + 8) + (-6 + 8) * 16  # even column low


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_of_zeros_stays_zero(bits: Bits) -> None:
    weights = matrix()
    weights[1] = 0
    found = restore(scale(weights, bits), torch.float32)
    assert bool((found[1] == 0).all())
    assert bool((found[0] != 0).any())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("spread", [1e-9, 1e9], ids=["tiny", "huge"])
def test_scales_that_16_bits_cannot_hold_are_stored_in_32(bits: Bits, spread: float) -> None:
    weights = matrix(spread=spread)
    scaled = scale(weights, bits)
    assert scaled.scales.dtype == torch.float32
    assert scale(matrix(), bits).scales.dtype == torch.float16
    share = (restore(scaled, torch.float64) - weights.double()).norm() / weights.norm()
    assert float(share) < 0.12


def loss(weights: Tensor, inputs: Tensor, given: Tensor | None) -> float:
    """Squared error of the products with the inputs."""
    back = restore(scale(weights, 4, given), torch.float64)
    return float(((back - weights.double()) @ inputs.double().T).square().sum())


@pytest.mark.parametrize("columns", [48, 2 * GROUP], ids=["one group", "two groups"])
def test_errors_are_made_good_where_inputs_hang_together(columns: int) -> None:
    weights = matrix(rows=32, columns=columns)
    mixing = matrix(rows=8, columns=columns, seed=2)
    inputs = matrix(rows=500, columns=8, seed=1) @ mixing + 0.1 * matrix(rows=500, columns=columns, seed=3)
    products = inputs.T @ inputs
    plain, better = loss(weights, inputs, None), loss(weights, inputs, products)
    assert better < 0.35 * plain


def test_large_inputs_get_the_finer_digits() -> None:
    """One scale a group: it is cut for the columns that count."""
    weights = matrix(rows=64, columns=GROUP)
    weights[:, 0] = 9.0
    inputs = matrix(rows=500, columns=GROUP, seed=1)
    inputs[:, 0] *= 1e-3
    assert loss(weights, inputs, inputs.T @ inputs) < 0.6 * loss(weights, inputs, None)


def test_inputs_never_met_do_no_harm() -> None:
    weights = matrix(columns=GROUP)
    products = torch.zeros(GROUP, GROUP)
    assert (
        float((restore(scale(weights, 4, products), torch.float64) - weights).norm() / weights.norm()) < 0.15
    )


@pytest.mark.parametrize(("columns", "group"), [(48, 48), (64, 64), (128, 64), (96, None), (33, None)])
def test_short_rows_are_one_group_and_long_ones_whole_groups(columns: int, group: int | None) -> None:
    assert group_of(columns) == group
    if group is None:
        with pytest.raises(ValueError, match="4 bits"):
            scale(matrix(columns=columns), 4)
    else:
        assert scale(matrix(columns=columns), 4).scales.shape == (5, columns // group)
