"""Reasons for doubt, in words."""

from __future__ import annotations

import numpy as np
import pytest

from harness.stats.grid import Floats, Grid
from harness.stats.stability import unstable_arm, unstable_run
from tests.harness.stats.build import grid_of


def _calm(launches: int = 5, blocks: int = 3, prompts: int = 24) -> tuple[Floats, Floats]:
    """Times of a run that gives no reason for doubt: speedup 1.5, noise 0.1 %."""
    rng = np.random.default_rng(0)
    own = rng.uniform(1.0, 2.0, prompts)
    noise = rng.normal(1.0, 0.001, (2, launches * blocks, prompts))
    return own * noise[0], own * noise[1] / 1.5


def _reasons(grid: Grid) -> str:
    return "\n".join((*unstable_run(grid), *unstable_arm("stock", grid)))


def test_a_calm_run_gives_no_reason() -> None:
    assert _reasons(grid_of(*_calm(), launches=5)) == ""


@pytest.mark.parametrize(
    ("launches", "words"),
    [
        (1, "launches: 1, so the spread between launches is unknown"),
        (4, "launches: 4, so the spread between"),
    ],
)
def test_few_launches_are_told_with_the_field_to_raise(launches: int, words: str) -> None:
    told = _reasons(grid_of(*_calm(launches), launches=launches))
    assert words in told
    assert "`measure.launches`" in told


def test_with_few_launches_the_speedup_of_each_is_shown() -> None:
    baseline, arm = _calm(2)
    arm[3:] *= 1.005
    assert "arm stock: speedup by launch: 1.501, 1.492" in _reasons(grid_of(baseline, arm, 2))


def test_few_prompts_are_told() -> None:
    assert "prompts: 19" in _reasons(grid_of(*_calm(prompts=19), launches=5))
    assert "prompts:" not in _reasons(grid_of(*_calm(prompts=20), launches=5))


def test_launches_further_apart_than_their_blocks_are_told() -> None:
    baseline, arm = _calm()
    arm[:3] /= 1.05
    told = _reasons(grid_of(baseline, arm, 5))
    assert "launches differ by 5.0%, more than their blocks explain" in told
    assert "1.575" in told


def test_a_launch_three_percent_off_is_told_beside_blocks_one_percent_off() -> None:
    """F = 5.4 by hand, above the 5 % limit of 3.5 for 4 and 10 degrees of freedom."""
    baseline, arm = _calm()
    arm *= np.exp(np.tile([-0.01, 0.01, 0.0], 5))[:, None]
    arm[:3] *= np.exp(0.03)
    assert "launches differ by 3." in _reasons(grid_of(baseline, arm, 5))


def test_launches_as_far_apart_as_their_blocks_are_not() -> None:
    baseline, arm = _calm()
    arm *= np.random.default_rng(1).normal(1.0, 0.03, (15, 1))
    assert "launches differ" not in _reasons(grid_of(baseline, arm, 5))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_drift_of_the_machine_over_the_blocks_is_told_with_its_size(sign: float) -> None:
    baseline, arm = _calm()
    slope = np.exp(sign * np.tile([0.0, 0.025, 0.05], 5))[:, None]
    told = _reasons(grid_of(baseline * slope, arm * slope, 5))
    size = {1.0: "+5.1%", -1.0: "-4.9%"}[sign]
    assert f"the baseline's time changed by {size} from the first block of a launch to the last" in told
    assert "its speedup changed" not in told  # both arms alike


def test_a_drift_below_three_percent_is_not_told() -> None:
    baseline, arm = _calm()
    slope = np.exp(np.tile([0.0, 0.01, 0.02], 5))[:, None]
    assert _reasons(grid_of(baseline * slope, arm * slope, 5)) == ""


def test_a_lost_pair_does_not_look_like_drift() -> None:
    grid = grid_of(*_calm(), launches=5)
    kept = np.ones_like(grid.baseline_ns)
    kept[2::3, :6] = 0.0  # a quarter of every last block
    assert "drift" not in _reasons(grid.masked(kept))


def test_an_arm_that_warms_up_over_the_blocks_is_told() -> None:
    baseline, arm = _calm()
    told = _reasons(grid_of(baseline, arm / np.exp(np.tile([0.0, 0.05, 0.1], 5))[:, None], 5))
    assert "arm stock: its speedup changed by +10.5%" in told
    assert "drift:" not in told


def test_a_prompt_that_carries_most_of_the_time_is_named() -> None:
    baseline, arm = _calm()
    baseline[:, 7] *= 20.0
    arm[:, 7] *= 20.0
    assert "prompt p7 takes" in _reasons(grid_of(baseline, arm, 5))


def test_two_even_prompts_are_not_dominated_by_either() -> None:
    assert "takes" not in _reasons(grid_of(np.ones((1, 2)), np.ones((1, 2)) / 1.5))


def test_an_outlier_is_kept_and_the_headline_shown_with_and_without_it() -> None:
    baseline, arm = _calm()
    arm[4, 9] *= 30.0
    grid = grid_of(baseline, arm, 5)
    told = _reasons(grid)
    assert "1 of 360 pairs lie far from their prompt's usual ratio, the farthest p9 in launch 1" in told
    assert f"{baseline.sum() / arm.sum():.3f} with and 1.500 without" in told


def test_prompts_that_differ_from_each_other_are_no_outliers() -> None:
    baseline, arm = _calm()
    gains = np.linspace(0.5, 4.0, 24)
    assert "far from" not in _reasons(grid_of(baseline, arm / gains, 5))


def test_an_outlier_is_seen_among_prompts_that_differ_far_more() -> None:
    baseline, arm = _calm()
    arm = arm / np.linspace(0.5, 4.0, 24)
    arm[4, 9] *= 1.3
    assert "1 of 360 pairs lie far from their prompt's usual ratio" in _reasons(grid_of(baseline, arm, 5))


def test_outputs_of_different_length_are_told() -> None:
    grid = grid_of(*_calm(), launches=5)
    grid.arm_tokens[:] *= 0.9
    grid.arm_ns[:] *= 0.9
    assert "it emitted -10.0% tokens against the baseline" in _reasons(grid)
    grid.arm_tokens[:] *= 0.99 / 0.9
    assert "it emitted" not in _reasons(grid)


def test_a_single_pair_gives_reasons_and_no_error() -> None:
    told = _reasons(grid_of(np.ones((1, 1)), np.ones((1, 1)) / 1.5))
    assert "launches: 1" in told
    assert "prompts: 1" in told
