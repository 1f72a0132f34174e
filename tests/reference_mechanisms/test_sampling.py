from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from harness.oracle.adjust import Adjuster
from harness.records import Sampling as HarnessSampling
from reference_mechanisms.request import Sampling
from reference_mechanisms.sampling import adjusted, distribution, draw, request_key, uniform

VOCAB = 12
LOWEST = float(np.finfo(np.float32).min)


def logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(Sampling(max_tokens=9, frequency_penalty=0.7), id="frequency"),
        pytest.param(Sampling(max_tokens=9, presence_penalty=0.7), id="presence"),
        pytest.param(Sampling(max_tokens=9, repetition_penalty=1.3), id="repetition"),
        pytest.param(Sampling(max_tokens=9, repetition_penalty=0.8), id="repetition below 1"),
        pytest.param(Sampling(max_tokens=9, min_tokens=5), id="min_tokens not reached"),
        pytest.param(Sampling(max_tokens=9, min_tokens=3), id="min_tokens reached"),
        pytest.param(
            Sampling(max_tokens=9, frequency_penalty=1, presence_penalty=-0.5, repetition_penalty=1.1),
            id="all",
        ),
    ],
)
def test_adjusted_logits_are_those_of_the_oracles_own_arithmetic(sampling: Sampling) -> None:
    prompt, emitted, stops = (3, 4, 4), (1, 1, 5), frozenset({2, 11})
    other = Adjuster(
        HarnessSampling(
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            repetition_penalty=sampling.repetition_penalty,
        ),
        prompt,
        tuple(stops),
    )
    for token in emitted:
        other.emit(token)
    row = logits()
    before = row.clone()
    found = adjusted(row, prompt, emitted, sampling, stops)
    expected = np.maximum(other.adjusted(row.numpy()), LOWEST)
    torch.testing.assert_close(found.clamp(min=LOWEST), torch.from_numpy(expected), rtol=1e-6, atol=1e-6)
    assert torch.equal(row, before)


def test_no_parameter_leaves_the_logits_as_they_are() -> None:
    row = logits()
    assert torch.equal(adjusted(row, (1,), (2,), Sampling(max_tokens=1), frozenset({3})), row)


def test_top_k_keeps_the_k_likeliest() -> None:
    row = torch.tensor([[1.0, 4.0, 3.0, 2.0]])
    found = distribution(row, Sampling(max_tokens=1, temperature=1.0, top_k=2))[0]
    assert found[[0, 3]].tolist() == [0.0, 0.0]
    assert found[1] / found[2] == pytest.approx(np.e)
    assert found.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.4, [0]), (0.5, [0]), (0.51, [0, 1]), (0.75, [0, 1]), (0.76, [0, 1, 2]), (1.0, [0, 1, 2])],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(top_p: float, kept: list[int]) -> None:
    row = torch.tensor([[0.5, 0.25, 0.25]]).log()
    found = distribution(row, Sampling(max_tokens=1, temperature=1.0, top_p=top_p))[0]
    assert torch.nonzero(found).flatten().tolist() == kept
    assert found.sum() == pytest.approx(1.0)


def test_temperature_divides_the_logits() -> None:
    row = torch.tensor([[0.0, 1.0]])
    found = distribution(row, Sampling(max_tokens=1, temperature=0.5))[0]
    assert found[1] / found[0] == pytest.approx(np.exp(2.0))


@pytest.mark.parametrize(("point", "token"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.9999999, 3)], ids=str)
def test_a_draw_follows_the_cumulative_distribution_and_never_hits_zero_probability(
    point: float, token: int
) -> None:
    assert draw(torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0], dtype=torch.float64), point) == token


def test_a_point_that_rounds_past_the_end_draws_the_last_possible_token() -> None:
    assert draw(torch.tensor([0.1] * 10 + [0.0], dtype=torch.float64), 1.0) == 9


def test_draws_follow_the_distribution() -> None:
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    key = request_key(1, (1, 2, 3))
    counts = Counter(draw(p, uniform(key, position, "draw")) for position in range(20_000))
    observed = [counts[token] for token in range(4)]
    assert stats.chisquare(observed, [2000, 4000, 6000, 8000]).pvalue > 1e-3


def test_random_numbers_depend_on_seed_prompt_position_and_purpose() -> None:
    key = request_key(0, (1, 2))
    base = uniform(key, 5, "draw")
    others = {
        uniform(request_key(1, (1, 2)), 5, "draw"),
        uniform(request_key(0, (1, 3)), 5, "draw"),
        uniform(key, 6, "draw"),
        uniform(key, 5, "accept"),
        uniform(key, 5, "residual"),
    }
    assert uniform(request_key(0, (1, 2)), 5, "draw") == base
    assert base not in others
    assert len(others) == 5
    assert 0.0 <= base < 1.0
