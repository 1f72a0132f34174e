from __future__ import annotations

import math

import numpy as np
import pytest

from harness.errors import InvalidRun
from harness.oracle.distribution import LEVEL, Surprise, judge_surprises, require_told, surprise
from harness.protocols import UNTOLD
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


def told(count: int, of: int = 50) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """A row of which a server tells the best `count` log-probabilities."""
    row = np.full(of, UNTOLD, dtype=np.float32)
    row[:count] = np.log(np.linspace(0.5, 0.1, count)).astype(np.float32)
    return row


def test_what_a_server_tells_gives_the_distribution_of_the_whole_row() -> None:
    # Raw log-probabilities are the logits less one constant, and top-k drops what is not told.
    rng = np.random.default_rng(3)
    logits = rng.gumbel(size=50).astype(np.float32) * 2.0
    whole = logits - np.float32(np.log(np.exp(logits).sum()))
    order = np.argsort(-logits)
    row = np.full(50, UNTOLD, dtype=np.float32)
    row[order[:5]] = whole[order[:5]]
    sampling = sampled(temperature=0.7, top_k=5, top_p=0.9)
    for token in order[:3]:
        wanted, found = (surprise(r, int(token), sampling, 0.0, int(order[7])) for r in (logits, row))
        assert found == pytest.approx(wanted, rel=1e-5)
        assert found.dropped == -math.inf


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"top_k": 0}, id="no top-k"),
        pytest.param({"top_k": 6}, id="more than told"),
        pytest.param({"top_k": 5, "repetition_penalty": 1.1}, id="penalty"),
        pytest.param({"top_k": 5, "min_tokens": 2}, id="stop tokens forbidden"),
        pytest.param({"temperature": 0.0, "frequency_penalty": 0.1}, id="penalty when greedy"),
    ],
)
def test_a_row_that_hides_tokens_which_could_matter_is_no_evidence(more: dict[str, float]) -> None:
    with pytest.raises(InvalidRun, match=r"stock told 5 tokens of 50"):
        require_told(told(5), sampled(**more))
    require_told(told(50), sampled(**more))


@pytest.mark.parametrize("more", [{"top_k": 5}, {"top_k": 1, "top_p": 0.5}, {"temperature": 0.0}])
def test_a_row_that_tells_all_that_can_be_drawn_will_do(more: dict[str, float]) -> None:
    require_told(told(5), sampled(**more))


def test_a_dropped_token_is_what_the_next_one_says_of_its_place() -> None:
    found = surprise(ROW, 0, sampled(), 0.0, following=2)
    assert found.dropped == pytest.approx(math.log(0.125), abs=1e-6)
    assert found.best == pytest.approx(math.log(0.5), abs=1e-6)
    assert found.second == pytest.approx(math.log(0.25), abs=1e-6)
    assert found.spread == pytest.approx(
        float((P * np.abs(np.log(P) - (P * np.log(P)).sum())).sum()), abs=1e-6
    )
    assert surprise(ROW, 0, sampled(), 0.0).dropped is None
    assert surprise(ROW, 0, sampled(top_k=1), 0.0).second == -math.inf


def test_the_test_tells_what_it_would_have_caught() -> None:
    stock, rng = HashStock(), np.random.default_rng(8)
    seen: list[Surprise] = []
    for n in range(8):
        ids = draw(stock, (n,), rng, 1.0)
        seen += force_with(stock, (n,), ids, Sampling(max_tokens=60, temperature=1.0)).surprises
    found = judge_surprises(seen)
    assert found is not None
    best, second, dropped, colder, hotter = found.detects
    for one in (best, second, dropped):
        assert one.share is not None
        assert 0.0 < one.share < 1.0
    assert dropped.total_variation is None
    assert colder.share == hotter.share == 1.0
    assert "times the temperature" in hotter.what
