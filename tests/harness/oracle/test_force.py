from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from harness.errors import InvalidRun
from harness.oracle.force import force, view
from harness.oracle.stops import StopRules
from harness.records import Sampling
from tests.harness.oracle.stock import EOS, VOCAB, Array, HashStock, force_with, greedy_ids

PLAIN = Sampling(max_tokens=16)


def rules(sampling: Sampling = PLAIN) -> StopRules:
    return StopRules(sampling, frozenset({EOS}), VOCAB)


def test_stocks_own_greedy_output_agrees_at_every_position() -> None:
    stock = HashStock()
    ids = greedy_ids(stock, (1, 2), 12)
    forced = force_with(stock, (1, 2), ids, PLAIN)
    assert [p.top_id for p in forced.positions] == list(ids)
    assert len(forced.positions) == 12


def test_a_wrong_token_is_seen_and_later_tokens_are_judged_in_its_context() -> None:
    stock = HashStock()
    ids = greedy_ids(stock, (1, 2), 3)
    wrong = ((ids[0] + 1) % VOCAB, *greedy_ids(stock, (1, 2, (ids[0] + 1) % VOCAB), 3))
    agreed = [p.top_id == p.token_id for p in force_with(stock, (1, 2), wrong, PLAIN).positions]
    assert agreed == [False, True, True, True]


def test_a_view_holds_the_two_best_and_the_emitted_logit() -> None:
    found = view(np.array([1.0, 4.0, 2.5, 3.0], dtype=np.float32), 2)
    assert (found.top_id, found.runner_up_id) == (1, 3)
    assert (found.top_logit, found.runner_up_logit, found.token_logit) == (4.0, 3.0, 2.5)


def test_the_lowest_id_is_the_argmax_on_ties() -> None:
    found = view(np.array([1.0, 4.0, 4.0, 4.0], dtype=np.float32), 3)
    assert (found.top_id, found.runner_up_id) == (1, 2)


def test_penalties_change_what_stock_would_have_said() -> None:
    stock = HashStock()
    sampling = Sampling(max_tokens=8, frequency_penalty=100.0)
    forced = force_with(stock, (1, 2), (3, 3), sampling)
    assert forced.positions[1].token_logit < forced.positions[0].token_logit - 50


def test_long_output_is_never_held_at_once() -> None:
    given: list[weakref.ref[Array]] = []

    def chunks() -> Iterator[Array]:
        for _ in range(6):
            assert sum(reference() is not None for reference in given) <= 1
            chunk = np.zeros((2, VOCAB), dtype=np.float32)
            given.append(weakref.ref(chunk))
            yield chunk
            del chunk

    assert len(force(chunks(), (1,), (0,) * 12, rules(), 0.0).positions) == 12


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_stock_that_is_not_finite_makes_the_run_invalid(bad: float) -> None:
    row = np.zeros((1, VOCAB), dtype=np.float32)
    row[0, 3] = bad
    with pytest.raises(InvalidRun, match="NaN or infinity"):
        force([row], (1,), (0,), rules(), 0.0)


@pytest.mark.parametrize(("given", "match"), [(1, "1 rows for 2"), (3, "more rows than the 2")])
def test_stock_must_give_one_row_a_token(given: int, match: str) -> None:
    with pytest.raises(InvalidRun, match=match):
        force([np.zeros((given, VOCAB), dtype=np.float32)], (1,), (0, 1), rules(), 0.0)


def test_greedy_output_has_no_surprises_and_sampled_output_one_a_token() -> None:
    stock = HashStock()
    assert force_with(stock, (1,), (0, 1), PLAIN).surprises == ()
    assert len(force_with(stock, (1,), (0, 1), Sampling(max_tokens=4, temperature=1.0)).surprises) == 2
