"""Simulations: do the intervals and tests err as often as they say, in worlds with a known truth?

Bounds leave about three standard errors of the simulation, so that they hold by rights and break
when a design is wrong; the designs that are known to be wrong are run beside the right ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from harness.measure.schedule import schedule
from harness.plan import MeasureSpec
from harness.results import Interval
from harness.stats.bootstrap import draw_rows, draw_units, estimate, family_level, interval
from harness.stats.equivalence import speed_verdict
from harness.stats.error_rates import one_sided_rate_test
from harness.stats.grid import Floats, Grid, lay_out
from harness.stats.pairs import Cost, Pair
from harness.stats.ratios import GEOMETRIC_MEAN, TOTAL_RATIO, Statistic
from tests.harness.stats.build import World, grid_of
from tests.harness.stats.test_surprisal import VOCABULARY, judge, log_softmax, sample

pytestmark = pytest.mark.slow

RESAMPLES = 400


def _interval(grid: Grid, rng: np.random.Generator, statistic: Statistic = TOTAL_RATIO) -> Interval:
    found = estimate(grid, statistic, draw_rows(grid.launch_of, RESAMPLES, rng), rng)
    assert found is not None
    return interval(found, 0.95)


class Errors(NamedTuple):
    """How often the truth lay outside, on which side of the interval."""

    below: float  # claimed too much
    above: float

    @property
    def coverage(self) -> float:
        return 1.0 - self.below - self.above


def _errors(
    draw: Callable[[np.random.Generator], Interval], truth: float, runs: int = 1000, seed: int = 1
) -> Errors:
    rng = np.random.default_rng(seed)
    below = above = 0
    for _ in range(runs):
        found = draw(rng)
        below += truth < math.log(found.low)
        above += truth > math.log(found.high)
    return Errors(below / runs, above / runs)


ORDINARY = {
    "smoke run": World(),
    "one launch of one block": World(launches=1, blocks=1),
    "full run": World(prompts=80, launches=3, blocks=5),
    "few prompts": World(prompts=8),
    "lengths spread by 60 %": World(length=0.6),
    "launch effect of 2 %": World(gain=0.1, launch=0.02),
    "prompts alike, five launches apart": World(gain=0.02, launch=0.03, launches=5, blocks=3),
    "prompts alike, one launch": World(gain=0.02, launch=0.0, launches=1, blocks=4, block=0.03),
    "noise of single times only": World(gain=0.02, launch=0.0, block=0.0),
}
HARD = {
    "prompts alike, two launches apart": World(gain=0.02, launch=0.03),
    "prompts alike, three launches apart": World(gain=0.02, launch=0.03, launches=3),
    "lengths spread over two orders": World(length=1.2),
}


@pytest.mark.parametrize("world", ORDINARY.values(), ids=ORDINARY)
def test_intervals_cover_the_true_total_time_ratio(world: World) -> None:
    found = _errors(lambda rng: _interval(world.draw(rng), rng), world.true_log_ratio)
    assert 0.92 <= found.coverage <= 0.992
    assert found.below <= 0.06  # a false "faster" from an interval that lies too high


@pytest.mark.parametrize("world", HARD.values(), ids=HARD)
def test_intervals_lose_little_where_two_launches_or_a_few_long_prompts_decide(world: World) -> None:
    """Plain percentiles cover 73 to 84 % here (next test)."""
    found = _errors(lambda rng: _interval(world.draw(rng), rng), world.true_log_ratio)
    assert 0.885 <= found.coverage <= 0.97


@pytest.mark.parametrize("world", HARD.values(), ids=HARD)
def test_plain_percentiles_would_be_too_narrow_there(world: World) -> None:
    def percentiles(rng: np.random.Generator) -> Interval:
        grid = world.draw(rng)
        found = estimate(grid, TOTAL_RATIO, draw_rows(grid.launch_of, RESAMPLES, rng), rng)
        assert found is not None
        return _replace_ends(interval(found, 0.95), found.replicates)

    assert _errors(percentiles, world.true_log_ratio).coverage < 0.87


def test_the_geometric_mean_is_covered() -> None:
    world = World(length=0.6)
    found = _errors(lambda rng: _interval(world.draw(rng), rng, GEOMETRIC_MEAN), world.mean)
    assert 0.92 <= found.coverage <= 0.97


def test_resampling_prompts_anew_in_every_block_would_be_far_too_narrow() -> None:
    """Why prompts are crossed with blocks: the same ones come back."""
    world = World(launches=3, blocks=5)

    def nested(rng: np.random.Generator) -> Interval:
        grid = world.draw(rng)
        rows = draw_rows(grid.launch_of, RESAMPLES, rng)
        sums = []
        for cells in (grid.baseline_ns, grid.arm_ns):
            state = np.random.default_rng(7)  # the same draws for both arms: paired
            parts = [draw_units(world.prompts, RESAMPLES, state) @ row for row in cells]
            sums.append(np.sum(np.stack(parts, axis=1) * rows, axis=1))
        return _replace_ends(_interval(grid, rng), np.log(sums[0] / sums[1]))

    assert _errors(nested, world.true_log_ratio, 400).coverage < 0.65
    crossed = _errors(lambda rng: _interval(world.draw(rng), rng), world.true_log_ratio, 400)
    assert crossed.coverage > 0.91


def test_simultaneous_intervals_cover_all_categories_at_once() -> None:
    world = World(prompts=15, launches=3, blocks=3)
    jointly = singly = 0
    rng = np.random.default_rng(1)
    runs = 400
    for _ in range(runs):
        launch = np.repeat(np.exp(rng.normal(0.0, 0.01, 3)), 3)[:, None]  # shared by all categories
        grids = [world.draw(rng) for _ in range(4)]
        rows = draw_rows(grids[0].launch_of, RESAMPLES, rng)
        shared = [grid_of(g.baseline_ns, g.arm_ns * launch, 3) for g in grids]
        family = [e for g in shared if (e := estimate(g, TOTAL_RATIO, rows, rng)) is not None]
        level = family_level(family, 0.95)
        jointly += all(_covers(interval(e, 0.95, level=level), world.true_log_ratio) for e in family)
        singly += all(_covers(interval(e, 0.95), world.true_log_ratio) for e in family)
    assert jointly / runs > 0.915
    assert singly / runs < 0.89


def _run_batches(rng: np.random.Generator, prompts: int, launches: int, batch: int) -> list[Pair]:
    """Batches as the measurer schedules them; a batch ends with its slowest member."""
    baseline = np.exp(0.4 * rng.standard_normal(prompts))
    arm = baseline * np.exp(-0.3 - 0.3 * rng.standard_normal(prompts))
    pairs = []
    measure = MeasureSpec(launches=launches, blocks=4, batch=batch, seed=int(rng.integers(1 << 30)))
    for launch in range(launches):
        for slot in schedule(["ar"], prompts, measure, launch):
            one, other = (float(t[list(slot.prompts)].max() * rng.normal(1.0, 0.01)) for t in (baseline, arm))
            costs = [Cost(round(t * 1e9), 1, 1, 1) for t in (one, other)]
            pairs.append(
                Pair(launch, slot.block, tuple(f"p{n:03}" for n in slot.prompts), costs[0], costs[1])
            )
    return pairs


def test_batches_drawn_anew_are_covered_and_taking_them_as_new_ones_would_not_be() -> None:
    truth_rng = np.random.default_rng(0)
    many = _run_batches(truth_rng, 120_000, 1, 4)
    truth = math.log(sum(p.baseline.total_ns for p in many) / sum(p.arm.total_ns for p in many))

    def ours(rng: np.random.Generator) -> Interval:
        grid = lay_out(_run_batches(rng, 48, 2, 4))
        assert grid is not None
        assert grid.units[0] == "batch rank 0"
        return _interval(grid, rng)

    def as_new(rng: np.random.Generator) -> Interval:
        grid = lay_out(_run_batches(rng, 48, 2, 4))
        assert grid is not None
        flat = grid_of(grid.baseline_ns.reshape(1, -1), grid.arm_ns.reshape(1, -1))
        return _interval(flat, rng)

    assert 0.93 <= _errors(ours, truth, 500).coverage <= 0.99
    assert _errors(as_new, truth, 500).coverage < 0.6


class Orders(NamedTuple):
    """Rejections of a true ratio of 1, and mean bias of the ratio, under one order of the runs."""

    rejected: float
    bias: float


def _interleave(order: str, runs: int = 1500) -> Orders:
    """Ten runs of each arm in this order, 3 % linear drift, 1 % noise, no difference."""
    rng = np.random.default_rng(1)
    drift = np.exp(np.linspace(0.0, 0.03, len(order)))
    places = [np.array([n for n, name in enumerate(order) if name == arm]) for arm in "AB"]
    rejected, points = 0, []
    for _ in range(runs):
        times = drift * np.exp(rng.normal(0.0, 0.01, len(order)))
        found = _interval(grid_of(times[places[1]][:, None], times[places[0]][:, None]), rng)
        rejected += not found.low <= 1.0 <= found.high
        points.append(found.point)
    return Orders(rejected / runs, float(np.mean(points)) - 1.0)


def test_running_one_arm_after_the_other_takes_drift_for_a_speedup() -> None:
    found = _interleave("A" * 10 + "B" * 10)
    assert found.bias > 0.013
    assert found.rejected > 0.75


def test_mirrored_pairs_do_not() -> None:
    mirrored, alternating = _interleave("ABBA" * 5), _interleave("AB" * 10)
    assert abs(mirrored.bias) < 0.0005
    assert mirrored.rejected < 0.07
    assert alternating.bias > 0.001  # always second, always a little later


def test_the_measurers_own_schedule_cancels_a_drift() -> None:
    rng = np.random.default_rng(1)
    prompts, rejected, points = 12, 0, []
    for run in range(400):
        measure = MeasureSpec(launches=1, blocks=4, seed=run)
        cells = np.zeros((2, 4, prompts))
        slots = schedule(["ar", "s"], prompts, measure, 0)
        for slot in slots:
            level = 1.0 + 0.10 * slot.order / len(slots)
            cells[["ar", "s"].index(slot.arm), slot.block, slot.prompts[0]] = level * rng.normal(1.0, 0.01)
        found = _interval(grid_of(cells[0], cells[1]), rng)
        rejected += not found.low <= 1.0 <= found.high
        points.append(found.point)
    assert abs(float(np.mean(points)) - 1.0) < 0.0004
    assert rejected / 400 < 0.08


def test_equivalence_is_rarely_said_of_a_difference_as_large_as_the_margin() -> None:
    edge = World(
        prompts=40, gain=0.02, length=0.1, launch=0.001, block=0.001, launches=5, mean=math.log(1.02)
    )
    same = edge._replace(mean=0.0)
    rng = np.random.default_rng(1)
    wrong = sum(speed_verdict(_interval(edge.draw(rng), rng), 0.02) == "equivalent" for _ in range(500))
    right = sum(speed_verdict(_interval(same.draw(rng), rng), 0.02) == "equivalent" for _ in range(300))
    assert wrong / 500 < 0.05
    assert right / 300 > 0.9


@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0], ids=["flat", "usual", "peaked"])
def test_the_surprisal_test_keeps_its_level_and_catches_a_slightly_cold_sampler(spread: float) -> None:
    rng = np.random.default_rng(1)
    stock = log_softmax(rng.gumbel(size=(600, VOCABULARY)) * spread)
    alarms = sum(not judge(stock, sample(rng, stock)).passed for _ in range(1500))
    assert alarms / 1500 < 0.018
    cold: Floats = log_softmax(stock * 1.35)
    caught = sum(not judge(stock, sample(rng, cold)).passed for _ in range(200))
    assert caught / 200 > {0.5: 0.98, 2.0: 0.98, 6.0: 0.7}[spread]


def test_the_rate_test_keeps_its_level_and_finds_a_fourfold_rate() -> None:
    rng = np.random.default_rng(1)
    for positions, stock_positions, rate in [(1500, 300, 0.01), (3000, 3000, 0.002), (1500, 6000, 0.004)]:
        arm, stock = rng.binomial(positions, rate, 3000), rng.binomial(stock_positions, rate, 3000)
        failed = sum(
            not one_sided_rate_test(int(k), positions, int(s), stock_positions).passed
            for k, s in zip(arm, stock, strict=True)
        )
        assert failed / 3000 < 0.0155
    arm, stock = rng.binomial(3000, 0.02, 300), rng.binomial(3000, 0.005, 300)
    found = sum(
        not one_sided_rate_test(int(k), 3000, int(s), 3000).passed for k, s in zip(arm, stock, strict=True)
    )
    assert found / 300 > 0.95


def _covers(found: Interval, truth: float) -> bool:
    return math.log(found.low) <= truth <= math.log(found.high)


def _replace_ends(found: Interval, replicates: Floats) -> Interval:
    low, high = np.exp(np.quantile(replicates, [0.025, 0.975]))
    return Interval(
        point=found.point,
        low=float(low),
        high=float(high),
        confidence=0.95,
        method="plain percentiles",
        launches=found.launches,
        blocks=found.blocks,
        prompts=found.prompts,
        resamples=found.resamples,
    )
