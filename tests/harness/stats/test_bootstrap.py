"""The hierarchical paired bootstrap."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from harness.results import Interval
from harness.stats.bootstrap import (
    Estimate,
    draw_rows,
    draw_units,
    estimate,
    family_level,
    interval,
    p_value,
    reach,
)
from harness.stats.grid import Floats, Grid
from harness.stats.ratios import GEOMETRIC_MEAN, TOTAL_RATIO, Statistic
from tests.harness.stats.build import World, grid_of


def _estimate(
    grid: Grid, statistic: Statistic = TOTAL_RATIO, resamples: int = 2000, seed: int = 0
) -> Estimate:
    rng = np.random.default_rng(seed)
    found = estimate(grid, statistic, draw_rows(grid.launch_of, resamples, rng), rng)
    assert found is not None
    return found


def _interval(grid: Grid, statistic: Statistic = TOTAL_RATIO, resamples: int = 2000) -> Interval:
    return interval(_estimate(grid, statistic, resamples), 0.95)


def _scipy_interval(
    baseline: Floats, arm: Floats, method: Literal["percentile", "basic", "BCa"], resamples: int = 20_000
) -> tuple[float, float]:
    def log_ratio(a: Floats, s: Floats, axis: int = -1) -> Any:
        return np.log(a.sum(axis=axis) / s.sum(axis=axis))

    found = scipy_stats.bootstrap(
        (baseline, arm),
        log_ratio,
        paired=True,
        vectorized=True,
        n_resamples=resamples,
        method=method,
        rng=np.random.default_rng(7),
    ).confidence_interval
    return float(found.low), float(found.high)


def test_one_level_percentiles_are_those_of_scipys_paired_bootstrap() -> None:
    grid = World(prompts=40, launches=1, blocks=1).draw(np.random.default_rng(3))
    ours = np.quantile(_estimate(grid, resamples=20_000).replicates, [0.025, 0.975])
    low, high = _scipy_interval(grid.baseline_ns[0], grid.arm_ns[0], "percentile")
    assert ours == pytest.approx((low, high), abs=0.02 * (high - low))


def test_one_level_interval_is_scipys_basic_one_for_many_prompts_apart_from_students_width() -> None:
    """Skewed on purpose, so that reflecting the wrong way round is seen."""
    grid = World(prompts=300, launches=1, blocks=1, length=1.0, tie=-0.8).draw(np.random.default_rng(9))
    found = _estimate(grid, resamples=20_000)
    ours = interval(found, 0.95)
    stretch = reach(found, 0.025) / (np.std(found.replicates) * scipy_stats.norm.isf(0.025))
    low, high = _scipy_interval(grid.baseline_ns[0], grid.arm_ns[0], "basic")
    point = math.log(ours.point)
    assert point - math.log(ours.low) == pytest.approx((point - low) * stretch, rel=0.02)
    assert math.log(ours.high) - point == pytest.approx((high - point) * stretch, rel=0.02)
    assert abs((high - point) / (point - low) - 1.0) > 0.06


def test_one_level_interval_is_scipys_bca_for_many_prompts() -> None:
    grid = World(prompts=400, launches=1, blocks=1, length=0.1).draw(np.random.default_rng(3))
    found = _interval(grid, resamples=20_000)
    low, high = _scipy_interval(grid.baseline_ns[0], grid.arm_ns[0], "BCa", 5000)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((low, high), abs=0.04 * (high - low))


def test_one_level_interval_of_few_prompts_is_wider_than_percentiles_by_students_factor() -> None:
    grid = World(prompts=8, launches=1, blocks=1, length=0.0).draw(np.random.default_rng(5))
    found = _estimate(grid, resamples=20_000)
    (spread,) = found.spreads
    influence = grid.baseline_ns[0] / grid.baseline_ns.sum() - grid.arm_ns[0] / grid.arm_ns.sum()
    assert spread.standard_error == pytest.approx(math.sqrt(8 / 7 * float(np.sum(influence**2))), rel=0.1)
    assert spread.degrees_of_freedom <= 7.0
    ours = interval(found, 0.95)
    low, high = np.quantile(found.replicates, [0.025, 0.975])
    student = scipy_stats.t.isf(0.025, spread.degrees_of_freedom) / scipy_stats.norm.isf(0.025)
    stretch = student * spread.standard_error / np.std(found.replicates)
    assert stretch > 1.15
    assert math.log(ours.high / ours.low) == pytest.approx((high - low) * stretch, rel=1e-9)


def test_launches_are_drawn_whole_and_blocks_only_from_drawn_launches() -> None:
    launch_of = np.array([0, 0, 0, 1, 2, 2])
    rows = draw_rows(launch_of, 3000, np.random.default_rng(0))
    by_launch = np.stack([rows[:, launch_of == launch].sum(axis=1) for launch in range(3)], axis=1)
    sizes = np.array([3, 1, 2])
    assert np.all(by_launch % sizes == 0)
    assert np.all((by_launch // sizes).sum(axis=1) == 3)
    assert (by_launch // sizes).mean(axis=0) == pytest.approx([1.0, 1.0, 1.0], abs=0.05)
    within = rows[:, :3][by_launch[:, 0] == 3]
    assert within.mean(axis=0) == pytest.approx([1.0, 1.0, 1.0], abs=0.08)
    assert within.var(axis=0) == pytest.approx([2 / 3] * 3, rel=0.15)  # multinomial: n p (1 - p)


def test_prompts_are_drawn_once_for_all_blocks() -> None:
    """With prompt spread alone, more blocks add nothing: the interval must not shrink."""
    one_block = World(launches=1, blocks=1, length=0.0, launch=0.0, block=0.0, cell=0.0, drift=0.0)
    grid = one_block.draw(np.random.default_rng(1))
    wide = _interval(grid)
    repeated = grid_of(np.repeat(grid.baseline_ns, 6, axis=0), np.repeat(grid.arm_ns, 6, axis=0), 3)
    again = _interval(repeated)
    assert math.log(again.high / again.low) == pytest.approx(math.log(wide.high / wide.low), rel=0.05)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    grid = World().draw(np.random.default_rng(1))
    assert interval(_estimate(grid), 0.95) == interval(_estimate(grid), 0.95)
    assert interval(_estimate(grid), 0.95) != interval(_estimate(grid, seed=1), 0.95)


def test_chunks_of_a_large_run_cover_every_resample() -> None:
    world = World(prompts=1500, launches=1, blocks=2)
    found = _estimate(world.draw(np.random.default_rng(1)), resamples=3000)
    assert len(found.replicates) == 3000
    assert np.std(found.replicates) == pytest.approx(found.spreads[0].standard_error, rel=0.1)


def test_four_thousand_resamples_of_24_prompts_in_2_launches_of_2_blocks_take_under_a_second() -> None:
    grid = World().draw(np.random.default_rng(1))
    started = time.perf_counter()
    _interval(grid, resamples=4000)
    assert time.perf_counter() - started < 1.0


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    launches=st.integers(2, 4),
    blocks=st.integers(2, 4),
    prompts=st.integers(2, 12),
    launch=st.sampled_from([0.0, 0.001, 0.05]),
    gain=st.sampled_from([0.0, 0.02, 0.3]),
)
def test_launches_that_agree_by_luck_never_make_an_interval_narrower_than_their_blocks(
    seed: int, launches: int, blocks: int, prompts: int, launch: float, gain: float
) -> None:
    world = World(prompts=prompts, launches=launches, blocks=blocks, launch=launch, gain=gain)
    found = _estimate(world.draw(np.random.default_rng(seed)), resamples=200)
    within = next(s for s in found.spreads if s.source == "blocks")
    alone = within.standard_error * float(scipy_stats.t.isf(0.025, within.degrees_of_freedom))
    assert reach(found, 0.025) >= alone
    assert {s.source for s in found.spreads} == {"launches", "blocks"}


def test_two_identical_launches_with_noisy_blocks_keep_the_width_of_the_blocks() -> None:
    world = World(launches=1, blocks=3, gain=0.0, launch=0.0, block=0.05)
    grid = world.draw(np.random.default_rng(2))
    single = _interval(grid)
    twice = _interval(grid_of(np.tile(grid.baseline_ns, (2, 1)), np.tile(grid.arm_ns, (2, 1)), 2))
    # half the variance and twice the degrees of freedom (2 -> 4), not zero
    expected = scipy_stats.t.isf(0.025, 4) / scipy_stats.t.isf(0.025, 2) / math.sqrt(2)
    assert math.log(twice.high / twice.low) / math.log(single.high / single.low) == pytest.approx(
        expected, rel=0.1
    )


def test_a_launch_effect_widens_the_interval_beyond_that_of_its_blocks() -> None:
    world = World(launches=4, blocks=3, gain=0.0, launch=0.05, block=0.001)
    found = _estimate(world.draw(np.random.default_rng(2)))
    launches, blocks = found.spreads
    assert launches.standard_error > 5.0 * blocks.standard_error
    # jackknife over launches is the standard error of the mean of their log ratios
    assert launches.degrees_of_freedom == pytest.approx(3.0, abs=0.3)


DEGENERATE = {
    "one pair": (1, 1, 1, 0),
    "one prompt, one block": (1, 3, 1, 2),
    "one prompt": (1, 2, 2, 2),
    "one block": (5, 1, 1, 2),
    "one launch": (5, 1, 3, 2),
    "two prompts": (2, 2, 2, 2),
}


@pytest.mark.parametrize("statistic", [TOTAL_RATIO, GEOMETRIC_MEAN], ids=["total", "geomean"])
@pytest.mark.parametrize(("prompts", "launches", "blocks", "sign"), DEGENERATE.values(), ids=DEGENERATE)
def test_degenerate_sizes_give_finite_intervals_without_a_warning(
    statistic: Statistic, prompts: int, launches: int, blocks: int, sign: int
) -> None:
    grid = World(prompts=prompts, launches=launches, blocks=blocks).draw(np.random.default_rng(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = _interval(grid, statistic)
    assert 0.0 < found.low <= found.point <= found.high < math.inf
    assert (found.low < found.high) == (sign > 0)
    assert ("zero width" in found.method) == (sign == 0)


@pytest.mark.parametrize("statistic", [TOTAL_RATIO, GEOMETRIC_MEAN], ids=["total", "geomean"])
def test_constant_data_falls_back_to_percentiles_and_flags_its_zero_width(statistic: Statistic) -> None:
    times = np.random.default_rng(0).uniform(1e9, 9e9, (4, 7))  # thirds leave rounding errors
    found = _interval(grid_of(times, times / 3.0, 2), statistic)
    assert (found.low, found.point, found.high) == pytest.approx((3.0, 3.0, 3.0), rel=1e-12)
    assert found.low == found.high
    assert "percentile; zero width" in found.method


@pytest.mark.parametrize(
    ("prompts", "launches", "blocks", "words"),
    [
        (4, 1, 2, "one launch: the spread between launches is not in it"),
        (4, 2, 2, "only 2 launches: read the launch spread as well"),
        (1, 2, 2, "one prompt: the spread between prompts is not in it"),
        (4, 2, 2, "over launches x blocks x prompts"),
        (4, 1, 1, "over prompts,"),
    ],
)
def test_method_says_what_the_interval_rests_on(prompts: int, launches: int, blocks: int, words: str) -> None:
    grid = World(prompts=prompts, launches=launches, blocks=blocks).draw(np.random.default_rng(4))
    assert words in _interval(grid).method


def test_five_launches_need_no_caution() -> None:
    assert "only" not in _interval(World(launches=5).draw(np.random.default_rng(4))).method


def test_lost_cells_weigh_nothing() -> None:
    grid = World().draw(np.random.default_rng(4))
    kept = np.ones_like(grid.baseline_ns)
    kept[0, :5] = 0.0
    found = _estimate(grid.masked(kept))
    expected = (grid.baseline_ns * kept).sum() / (grid.arm_ns * kept).sum()
    assert math.exp(found.log_ratio) == pytest.approx(expected)
    assert np.isfinite(found.replicates).all()


def test_a_prompt_lost_in_most_blocks_does_not_break_the_geometric_mean() -> None:
    grid = World(prompts=3).draw(np.random.default_rng(4))
    kept = np.ones_like(grid.baseline_ns)
    kept[1:, 2] = 0.0
    found = _interval(grid.masked(kept), GEOMETRIC_MEAN)
    assert 0.0 < found.low < found.point < found.high


def test_no_time_in_an_arm_gives_no_estimate() -> None:
    rng = np.random.default_rng(0)
    grid = grid_of(np.ones((2, 3)), np.zeros((2, 3)))
    assert estimate(grid, TOTAL_RATIO, draw_rows(grid.launch_of, 100, rng), rng) is None
    assert estimate(grid, GEOMETRIC_MEAN, draw_rows(grid.launch_of, 100, rng), rng) is None


def test_one_prompt_that_carries_all_the_time_leaves_one_degree_of_freedom() -> None:
    times = np.array([[1000.0, 1.0, 1.0, 1.0, 1.0]])
    arm = times / np.array([2.0, 1.0, 3.0, 2.0, 4.0])
    heavy, even = (
        _estimate(grid_of(times, arm)).spreads,
        _estimate(grid_of(np.ones((1, 5)), arm / times)).spreads,
    )
    assert heavy[0].degrees_of_freedom == 1.0
    assert even[0].degrees_of_freedom > 2.0


def test_ends_stay_finite_when_nothing_is_known() -> None:
    grid = grid_of(np.array([[1e18, 1.0]]), np.array([[1.0, 1e18]]))
    found = _interval(grid)
    assert (found.low, found.high) == pytest.approx((math.exp(-60.0), math.exp(60.0)))


def test_the_standard_error_of_a_mean_of_log_ratios_is_the_textbooks() -> None:
    grid = World(prompts=9, launches=1, blocks=1).draw(np.random.default_rng(4))
    (spread,) = _estimate(grid, GEOMETRIC_MEAN).spreads
    logs = np.log(grid.baseline_ns[0] / grid.arm_ns[0])
    assert spread.standard_error == pytest.approx(np.std(logs, ddof=1) / 3.0, rel=1e-9)


def test_a_heavy_tail_among_even_prompts_lowers_the_degrees_of_freedom() -> None:
    arm = np.exp(np.array([[0.1, -0.1] * 10 + [2.0]]))
    heavy = _estimate(grid_of(np.ones_like(arm), arm), GEOMETRIC_MEAN).spreads[0].degrees_of_freedom
    even = _estimate(grid_of(np.ones((1, 20)), arm[:, :20]), GEOMETRIC_MEAN).spreads[0].degrees_of_freedom
    assert heavy < 5.0
    assert even == pytest.approx(19.0)


def test_p_values_agree_with_the_interval_ends() -> None:
    found = _estimate(World(length=0.0, launches=5).draw(np.random.default_rng(8)))
    half = reach(found, 0.025)
    assert p_value(found, math.exp(found.log_ratio - half), "greater") == pytest.approx(0.025, rel=1e-6)
    assert p_value(found, math.exp(found.log_ratio + half), "less") == pytest.approx(0.025, rel=1e-6)
    assert p_value(found, math.exp(found.log_ratio), "greater") == pytest.approx(0.5)
    assert p_value(_estimate(grid_of(np.ones((1, 1)), np.ones((1, 1)) / 2)), 1.0, "greater") == 1.0


def test_the_level_of_a_family_lies_between_the_single_one_and_bonferronis() -> None:
    rng = np.random.default_rng(0)
    rows = draw_rows(np.array([0, 0, 1, 1]), 4000, rng)

    def family(world: World, count: int) -> list[Estimate]:
        found = [estimate(world.draw(rng), TOTAL_RATIO, rows, rng) for _ in range(count)]
        return [one for one in found if one is not None]

    apart = family_level(family(World(prompts=60, launch=0.0, block=0.0), 6), 0.95)
    assert 0.989 < apart <= 1.0 - 0.05 / 6  # independent: Sidak's 0.9915
    one = family(World(launches=2), 1)
    assert family_level(one * 6, 0.95) == pytest.approx(0.95, abs=0.015)  # the same thing six times
    assert family_level(one, 0.95) == 0.95


def test_units_are_drawn_with_replacement_as_often_as_there_are() -> None:
    drawn = draw_units(10, 2000, np.random.default_rng(0))
    assert np.all(drawn.sum(axis=1) == 10)
    assert drawn.mean(axis=0) == pytest.approx(np.ones(10), abs=0.1)
    assert drawn.var() == pytest.approx(0.9, rel=0.05)
