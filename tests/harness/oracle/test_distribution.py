from __future__ import annotations

import math

import numpy as np
import pytest

from harness.oracle.distribution import LEVEL, Surprise, judge_surprises, surprise
from harness.records import Sampling
from tests.harness.oracle.stock import HashStock, force_with

P = np.array([0.5, 0.25, 0.125, 0.125])
ROW = np.log(P).astype(np.float32)


def sampled(**more: float) -> Sampling:
    return Sampling(max_tokens=4, **({"temperature": 1.0} | more))  # type: ignore[arg-type]


def test_surprise_is_the_log_probability_with_its_mean_and_variance() -> None:
    found = surprise(ROW, 1, sampled(), 0.0)
    mean = float((P * np.log(P)).sum())
    assert found.log_probability == pytest.approx(math.log(0.25), abs=1e-6)
    assert found.mean == pytest.approx(mean, abs=1e-6)
    assert found.variance == pytest.approx(float((P * np.log(P) ** 2).sum()) - mean**2, abs=1e-6)


def test_temperature_scales_the_logits() -> None:
    found = surprise(ROW, 0, sampled(temperature=0.5), 0.0)
    assert found.log_probability == pytest.approx(math.log(0.25 / (0.25 + 0.0625 + 2 * 0.015625)), abs=1e-6)


def test_top_k_renormalises_over_what_it_keeps() -> None:
    assert surprise(ROW, 1, sampled(top_k=2), 0.0).log_probability == pytest.approx(math.log(1 / 3), abs=1e-6)


def test_top_p_keeps_the_token_that_crosses_the_threshold() -> None:
    kept = sampled(top_p=0.6)
    assert surprise(ROW, 1, kept, 0.0).log_probability == pytest.approx(math.log(1 / 3), abs=1e-6)
    assert surprise(ROW, 2, kept, 0.0).log_probability == -math.inf


def test_a_token_outside_of_top_k_is_impossible() -> None:
    assert surprise(ROW, 3, sampled(top_k=1), 0.0).log_probability == -math.inf


def test_a_token_outside_by_no_more_than_the_noise_counts_as_the_last_one_inside() -> None:
    gap = float(ROW[0] - ROW[1])
    assert surprise(ROW, 1, sampled(top_k=1), gap + 1e-3).log_probability == pytest.approx(0.0)
    assert surprise(ROW, 1, sampled(top_k=1), gap - 1e-3).log_probability == -math.inf


def draw(
    stock: HashStock, prompt: tuple[int, ...], rng: np.random.Generator, temperature: float
) -> tuple[int, ...]:
    ids: list[int] = []
    for _ in range(60):
        row = stock.row((*prompt, *ids)).astype(np.float64)
        if temperature == 0.0:
            ids.append(int(row.argmax()))
        else:
            p = np.exp(row / temperature)
            ids.append(int(rng.choice(len(p), p=p / p.sum())))
    return tuple(ids)


@pytest.mark.parametrize(
    ("temperature", "passes"),
    [(1.0, True), (0.0, False), (4.0, False)],
    ids=["as asked", "greedy-like", "hot"],
)
def test_output_drawn_at_another_temperature_than_asked_is_seen(temperature: float, passes: bool) -> None:
    # B21: acceptance by argmax equality makes sampled output greedy-like.
    stock, rng = HashStock(), np.random.default_rng(7)
    seen: list[Surprise] = []
    for n in range(8):
        ids = draw(stock, (n,), rng, temperature)
        seen += force_with(stock, (n,), ids, Sampling(max_tokens=60, temperature=1.0)).surprises
    found = judge_surprises(seen)
    assert found is not None
    assert found.level == LEVEL
    assert found.passed is passes


def test_one_impossible_token_fails_the_test() -> None:
    good = surprise(ROW, 0, sampled(), 0.0)
    found = judge_surprises([good] * 500 + [good._replace(log_probability=-math.inf)])
    assert found is not None
    assert not found.passed


def test_certain_tokens_give_no_verdict() -> None:
    certain = surprise(np.array([50.0, 0.0], dtype=np.float32), 0, sampled(), 0.0)
    assert judge_surprises([certain] * 10) is None
