"""What the surprisal test says it catches, against simulation of just that."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.results import Deviation
from harness.stats.grid import Floats
from harness.stats.power import POWER, Stock, Tails, other_temperature, power, smallest
from harness.stats.surprisal import distribution_test

LEVEL = 0.001
POSITIONS, VOCABULARY, RUNS = 400, 20, 1000


@pytest.fixture(scope="module")
def log_p() -> Floats:
    """Stock's distributions [positions, vocabulary], some nearly certain, some wide."""
    rng = np.random.default_rng(0)
    logits = rng.gumbel(size=(POSITIONS, VOCABULARY)) * rng.uniform(0.5, 4.0, size=(POSITIONS, 1))
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


@pytest.fixture(scope="module")
def stock(log_p: Floats) -> Stock:
    p = np.exp(log_p)
    means = (p * log_p).sum(axis=1)
    return Stock(means, (p * log_p**2).sum(axis=1) - means**2, LEVEL)


def caught(stock: Stock, log_p: Floats, struck: Floats, share: float, seed: int = 1) -> float:
    """Share of simulated runs that fail the test; `struck` [positions] are the values of struck ones."""
    rng = np.random.default_rng(seed)
    failed = 0
    for _ in range(RUNS):
        drawn = np.argmax(log_p + rng.gumbel(size=log_p.shape), axis=1)
        values = np.take_along_axis(log_p, drawn[:, None], axis=1)[:, 0]
        values = np.where(rng.random(POSITIONS) < share, struck, values)
        found = distribution_test(values.tolist(), stock.means.tolist(), stock.variances.tolist(), LEVEL)
        failed += not found.passed
    return failed / RUNS


def ranked(log_p: Floats, rank: int) -> Floats:
    result: Floats = np.sort(log_p, axis=1)[:, -rank]
    return result


@pytest.mark.parametrize("rank", [1, 2, 10], ids=["best", "second", "tenth"])
def test_what_it_says_it_catches_it_catches_in_four_runs_of_five(
    stock: Stock, log_p: Floats, rank: int
) -> None:
    values = ranked(log_p, rank)
    found = smallest(stock, "so", values, None)
    assert found.share is not None
    assert 0.0 < found.share < 1.0
    assert caught(stock, log_p, values, found.share) == pytest.approx(POWER, abs=0.06)


@pytest.mark.parametrize("colder", [True, False], ids=["colder", "hotter"])
def test_another_temperature_is_caught_as_often_as_it_says(
    stock: Stock, log_p: Floats, *, colder: bool
) -> None:
    away, p = log_p - stock.means[:, None], np.exp(log_p)
    tails = Tails(*((p * power).sum(axis=1) for power in (np.abs(away), away**3, away**4)))
    found = other_temperature(stock, tails, colder=colder)
    assert found.total_variation is not None
    factor = float(found.what.split()[2])
    assert (factor < 1.0) is colder
    other = log_p / factor
    other = other - np.log(np.exp(other).sum(axis=1, keepdims=True))
    rng, failed = np.random.default_rng(2), 0
    for _ in range(RUNS):
        drawn = np.argmax(other + rng.gumbel(size=log_p.shape), axis=1)
        values = np.take_along_axis(log_p, drawn[:, None], axis=1)[:, 0]
        failed += not distribution_test(
            values.tolist(), stock.means.tolist(), stock.variances.tolist(), LEVEL
        ).passed
    assert failed / RUNS == pytest.approx(POWER, abs=0.06)
    true_distance = 0.5 * np.abs(np.exp(other) - p).sum(axis=1).mean()
    assert found.total_variation == pytest.approx(true_distance, rel=0.25)


def test_a_clean_run_is_caught_as_often_as_the_level_says(stock: Stock, log_p: Floats) -> None:
    assert power(stock, ranked(log_p, 1), 0.0) == pytest.approx(LEVEL, rel=1e-6)


def test_one_impossible_token_is_enough(stock: Stock) -> None:
    values = np.full(POSITIONS, -np.inf)
    found = smallest(stock, "impossible", values, np.ones(POSITIONS))
    assert found.share == pytest.approx(1.0 - (1.0 - POWER) ** (1.0 / POSITIONS), rel=0.01)
    assert found.total_variation == pytest.approx(found.share)


def test_positions_that_cannot_be_struck_catch_nothing(stock: Stock) -> None:
    values = np.full(POSITIONS, np.nan)
    assert smallest(stock, "never", values, None) == Deviation(what="never", share=None, total_variation=None)
    values[:3] = -np.inf
    assert smallest(stock, "thrice", values, None).share == pytest.approx(1.0 - 0.2 ** (1 / 3), rel=0.01)


def test_more_positions_catch_less(stock: Stock, log_p: Floats) -> None:
    few = Stock(stock.means[:100], stock.variances[:100], LEVEL)
    small, large = (
        smallest(
            of, "best", ranked(log_p, 1)[: len(of.means)], 1.0 - np.exp(ranked(log_p, 1)[: len(of.means)])
        )
        for of in (few, stock)
    )
    assert small.share is not None
    assert large.share is not None
    assert small.share > large.share
    assert small.total_variation is not None
    assert math.isclose(
        small.total_variation,
        small.share * float(np.mean(1.0 - np.exp(ranked(log_p, 1)[:100]))),
        rel_tol=1e-9,
    )
