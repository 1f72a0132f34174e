"""The gain model against simulations, and what it advises."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from reference_mechanisms.verification.two_level.gain import (
    LEAST_GAIN,
    Measured,
    agreed_runs,
    best_rounds,
    gain,
    kept_tokens,
    staged_gain,
)

FLAT = dict.fromkeys((8, 64), 1.0)
FIGURES = Measured(
    beta=0.95,
    level_one_tokens=2.4,
    tokens=2.4,
    draft_seconds=0.05,
    level_one_seconds=0.27,
    verify_seconds=FLAT,
    rows=8,
)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("held", [1, 4, 15])
def test_tokens_of_a_pass_are_those_of_a_simulation(beta: float, held: int) -> None:
    rng = random.Random(3)  # noqa: S311 - test data

    def once() -> int:
        kept = 0
        while kept < held and rng.random() < beta:
            kept += 1
        return kept + 1

    mean = sum(once() for _ in range(4_000)) / 4_000
    figures = dataclasses.replace(FIGURES, beta=beta)
    assert kept_tokens(figures, held) == pytest.approx(mean, abs=0.25)


def test_measured_runs_take_the_place_of_the_formula() -> None:
    runs = agreed_runs([(True, True, False, True), (), (False,)])
    assert runs == (2, 1, 0, 1, 0)
    figures = dataclasses.replace(FIGURES, runs=runs)
    assert kept_tokens(figures, 9) == 1 + 4 / 5
    assert kept_tokens(figures, 1) == 1 + 3 / 5


@pytest.mark.parametrize(
    ("beta", "level_one", "draft", "published"),
    [(0.95, 0.27, 0.05, 1.65), (0.99, 0.27, 0.15, 2.03), (0.95, 0.5, 0.1, 1.12), (0.99, 0.5, 0.1, 1.46)],
)
def test_the_model_stands_near_a_simulation_of_whole_decoding(
    beta: float, level_one: float, draft: float, published: float
) -> None:
    """A Monte Carlo decoder with drafts that are right with probability 0.6, best of 1 to 8 rounds."""
    figures = dataclasses.replace(FIGURES, beta=beta, level_one_seconds=level_one, draft_seconds=draft)
    assert best_rounds(figures, 8).gain == pytest.approx(published, rel=0.15)


def test_it_is_off_where_it_does_not_pay() -> None:
    good = best_rounds(FIGURES, 8)
    assert good.rounds > 1
    assert (
        good.gain == gain(FIGURES, good.rounds) == max(gain(FIGURES, rounds) or 0 for rounds in range(1, 9))
    )
    poor = dataclasses.replace(FIGURES, level_one_seconds=0.9, beta=0.6)
    assert best_rounds(poor, 8).rounds == 0
    assert 0 < best_rounds(poor, 8).gain < LEAST_GAIN


def test_passes_wider_than_measured_are_not_considered() -> None:
    narrow = dataclasses.replace(FIGURES, verify_seconds={8: 1.0})
    assert gain(narrow, 2) is not None
    assert gain(narrow, 3) is None
    with pytest.raises(ValueError, match="no pass that is wide enough"):
        best_rounds(dataclasses.replace(narrow, level_one_tokens=9.0), 8)


def test_stages_win_at_a_cliff_and_lose_without_one() -> None:
    survival = [0.8 ** (n + 1) for n in range(15)]
    cliff = {rows: 1.0 if rows <= 8 else 2.0 for rows in range(1, 17)}
    flat = dict.fromkeys(range(1, 17), 1.0)
    assert staged_gain(survival, 7, 0.2, cliff) > 1.3
    assert staged_gain(survival, 7, 0.2, flat) < 1.0
    with pytest.raises(ValueError, match="a rest must remain"):
        staged_gain(survival, 15, 0.2, flat)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beta": 1.2}, "`beta` is 1.2"),
        ({"tokens": 0.5}, "at least 1"),
        ({"level_one_seconds": 0.0}, "`level_one_seconds` above 0"),
        ({"verify_seconds": {}}, "needs rows from 1"),
        ({"rows": 65}, "`rows` is 65"),
    ],
)
def test_figures_that_are_none_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(FIGURES, **change)
