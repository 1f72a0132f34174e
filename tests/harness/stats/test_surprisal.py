"""The test of sampled output against stock's own distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.errors import UndefinedMetric
from harness.results import DistributionTest
from harness.stats.grid import Floats
from harness.stats.surprisal import distribution_test

VOCABULARY = 40


def log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def judge(stock: Floats, token_ids: Floats | list[int]) -> DistributionTest:
    """Test tokens against log-probabilities [positions, vocabulary]."""
    probabilities = np.exp(stock)
    mean = (probabilities * stock).sum(axis=1)
    variance = (probabilities * stock**2).sum(axis=1) - mean**2
    emitted = stock[np.arange(len(stock)), np.asarray(token_ids, dtype=np.int64)]
    return distribution_test(emitted.tolist(), mean.tolist(), variance.tolist())


def sample(rng: np.random.Generator, log_probabilities: Floats) -> Floats:
    gumbel = rng.gumbel(size=log_probabilities.shape)
    chosen: Floats = np.argmax(log_probabilities + gumbel, axis=1).astype(np.float64)
    return chosen


@pytest.fixture(scope="module")
def stock() -> Floats:
    return log_softmax(np.random.default_rng(0).gumbel(size=(300, VOCABULARY)) * 1.5)


def test_tokens_drawn_from_stock_pass(stock: Floats) -> None:
    found = judge(stock, sample(np.random.default_rng(1), stock))
    assert found.passed
    assert found.tokens == 300
    assert abs(found.z) < 2.6


def test_an_engine_that_samples_greedy_like_is_caught(stock: Floats) -> None:
    found = judge(stock, np.argmax(stock, axis=1).astype(np.float64))
    assert not found.passed
    assert found.z > 5.0


def test_an_engine_that_is_greedy_on_half_of_its_tokens_is_caught(stock: Floats) -> None:
    rng = np.random.default_rng(2)
    mixed = np.where(rng.random(300) < 0.5, np.argmax(stock, axis=1), sample(rng, stock))
    assert not judge(stock, mixed).passed


def test_drafts_of_a_worse_model_that_leak_through_are_caught(stock: Floats) -> None:
    rng = np.random.default_rng(3)
    drafter = log_softmax(stock + rng.normal(size=stock.shape) * 1.5)
    found = judge(stock, sample(rng, drafter))
    assert not found.passed
    assert found.z < -3.0


def test_the_statistic_is_the_standardised_sum() -> None:
    found = distribution_test([-1.0, -2.0] * 50, [-1.5] * 100, [0.25] * 100)
    assert found.z == pytest.approx(0.0)
    shifted = distribution_test([-1.0] * 100, [-1.5] * 100, [0.25] * 100)
    assert shifted.z == pytest.approx(100 * 0.5 / math.sqrt(25.0))
    two_sided = distribution_test([-1.45] * 100, [-1.5] * 100, [0.0625] * 100)
    assert (two_sided.z, two_sided.p_value) == pytest.approx((2.0, 0.0455), abs=1e-4)


def test_a_token_that_stock_cannot_emit_fails_at_once_with_a_finite_z() -> None:
    found = distribution_test([-1.0, -math.inf], [-1.0, -1.0], [1.0, 1.0])
    assert not found.passed
    assert found.p_value == 0.0
    assert math.isfinite(found.z)


def test_a_nearly_certain_text_is_too_little_evidence_and_says_so() -> None:
    """Ten tokens of probability 1e-3 besides the sure one: no normal z can judge that."""
    p = 1e-3
    mean = p * math.log(p) + (1 - p) * math.log1p(-p)
    variance = p * math.log(p) ** 2 + (1 - p) * math.log1p(-p) ** 2 - mean**2
    with pytest.raises(UndefinedMetric, match=r"these 100 tokens hold 0\.1"):
        distribution_test([0.0] * 100, [mean] * 100, [variance] * 100)


def test_a_certain_text_has_no_test() -> None:
    with pytest.raises(UndefinedMetric, match="expected surprises"):
        distribution_test([0.0], [0.0], [0.0])


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 log-probabilities, 1 means, 1 variances"):
        distribution_test([0.0, 0.0], [0.0], [0.0])
