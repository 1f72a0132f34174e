from __future__ import annotations

import numpy as np
import pytest

from harness.errors import InvalidRun
from harness.oracle.margin import StockBaseline, measure_baseline
from tests.harness.oracle.stock import EOS, HashStock, greedy_ids

PROMPTS = [(1, n) for n in range(5)]


def measure(stock: HashStock, *, tokens: int = 20, stop_ids: tuple[int, ...] = ()) -> StockBaseline:
    return measure_baseline(
        stock, PROMPTS, tokens=tokens, verify_rows=4, stop_ids=stop_ids, advance=lambda _: None
    )


def test_a_row_invariant_stock_has_no_margin_and_no_noise() -> None:
    margin, noise = measure(HashStock())
    assert (margin.value, margin.largest, margin.blind_share) == (0.0, 0.0, 0.0)
    assert noise.disagreements == 0


def test_the_margin_is_twice_the_quantile_of_the_largest_difference() -> None:
    stock = HashStock(noise=0.3)
    margin, _ = measure(stock)
    largest = []
    for prompt in PROMPTS:
        ids = greedy_ids(stock, prompt, 20)
        for n in range(1, 20):
            context = (*prompt, *ids[:n])
            largest.append(np.abs(stock.row(context, 1) - stock.row(context, 4)).max())
    assert margin.positions == len(largest) == 5 * 19
    assert margin.quantile == pytest.approx(float(np.quantile(largest, 0.999)), rel=1e-6)
    assert margin.value == 2 * margin.quantile
    assert margin.largest == pytest.approx(float(max(largest)))
    assert margin.exceedance_bound == pytest.approx(3 / 95)
    assert margin.shapes == ("one-token steps", "4-row steps", "prefill")


def test_the_blind_share_is_that_of_stocks_own_gaps_within_the_margin() -> None:
    stock = HashStock(noise=0.3)
    margin, _ = measure(stock)
    gaps = []
    for prompt in PROMPTS:
        ids = greedy_ids(stock, prompt, 20)
        for n in range(1, 20):
            best = np.sort(stock.row((*prompt, *ids[:n])))[-2:]
            gaps.append(best[1] - best[0])
    assert margin.blind_share == pytest.approx(np.mean(np.array(gaps) <= margin.value))
    assert margin.median_gap == pytest.approx(np.median(gaps))


def test_noise_counts_the_flips_of_each_other_shape() -> None:
    stock = HashStock(noise=0.8)
    _, noise = measure(stock)
    flips = 0
    for prompt in PROMPTS:
        ids = greedy_ids(stock, prompt, 20)
        for n in range(1, 20):
            context = (*prompt, *ids[:n])
            best = stock.row(context).argmax()
            flips += sum(stock.row(context, shape).argmax() != best for shape in (4, None))
    assert noise.positions == 2 * 5 * 19
    assert noise.disagreements == flips > 0


def test_stock_stops_at_its_own_end() -> None:
    stock = HashStock()
    ends = [ids.index(EOS) if EOS in ids else 19 for ids in (greedy_ids(stock, p, 20) for p in PROMPTS)]
    assert measure(stock, stop_ids=(EOS,)).margin.positions == sum(ends) < 5 * 19


def test_nothing_to_measure_makes_the_run_invalid() -> None:
    with pytest.raises(InvalidRun, match="calibration_tokens"):
        measure(HashStock(), tokens=1)
