from __future__ import annotations

import pytest

from reference_mechanisms.verification.budgeting import Costs, best_budget

WORTH = [0.8, 0.6, 0.3, 0.2, 0.1, 0.05, 0.02]


def test_the_best_ratio_at_the_end_of_a_stair_wins() -> None:
    costs = Costs(1.0, {1: 5.0, 2: 5.0, 4: 5.1, 8: 5.2, 16: 9.0})
    rates = {0: 1 / 6.0, 1: 1.8 / 6.0, 3: 2.7 / 6.1, 7: 3.07 / 6.2}
    assert best_budget(WORTH, costs) == max(rates, key=lambda budget: rates[budget]) == 7


def test_a_peak_behind_a_valley_is_found() -> None:
    # Rows 2 cost more than they bring, rows 4 no more than rows 2: a first descent would stop at no draft.
    costs = Costs(0.0, {1: 1.0, 2: 2.0, 4: 2.0})
    assert 1.8 / 2.0 < 1.0 < 2.7 / 2.0
    assert best_budget(WORTH, costs) == 3


def test_drafting_that_does_not_pay_is_left_out() -> None:
    assert best_budget(WORTH, Costs(0.0, {1: 1.0, 8: 9.0})) == 0
    assert best_budget([], Costs(0.0, {1: 1.0, 8: 1.0})) == 0


def test_a_costlier_draft_asks_for_more_nodes() -> None:
    stairs = {1: 1.0, 2: 1.2, 4: 2.0, 8: 3.0}
    found = [best_budget(WORTH, Costs(draft, stairs)) for draft in (0.0, 1.0, 20.0)]
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_a_small_tree_does_not_pay_for_more_rows_than_it_has() -> None:
    assert best_budget([0.9], Costs(0.1, {1: 1.0, 2: 1.1, 8: 1.2})) == 1


@pytest.mark.parametrize(
    ("draft", "verify", "message"),
    [
        (0.0, {}, "`verify` has no entry"),
        (0.0, {0: 1.0}, "rows from 1"),
        (0.0, {1: 0.0}, "seconds above 0"),
        (-1.0, {1: 1.0}, "`draft` is at least 0"),
    ],
)
def test_costs_that_cannot_be_are_refused(draft: float, verify: dict[int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Costs(draft, verify)
