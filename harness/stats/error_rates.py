"""How rare a disagreement is: bounds on a rate, and one rate against another.

Positions are taken as independent. They are forced one by one under the emitted prefix, so one
disagreement does not breed the next; repeated responses of a deterministic engine are no new
evidence and must be counted once by the caller.
"""

from __future__ import annotations

from scipy import stats as distributions

from harness.errors import UndefinedMetric
from harness.results import RateTest


def rule_of_three(positions: int) -> float:
    """95 % upper bound 3/N on a rate of which no case was seen in N positions.

    >>> rule_of_three(100_000)
    3e-05

    Raises:
        UndefinedMetric: N is 0.
    """
    if positions < 1:
        raise UndefinedMetric("the error rate has no bound: no position was judged")
    return min(1.0, 3.0 / positions)


def rate_bound(cases: int, positions: int, confidence: float = 0.95) -> float:
    """Exact one-sided upper bound on a rate (Clopper and Pearson 1934).

    Raises:
        UndefinedMetric: no position.
    """
    _require_counts(cases, positions, "position")
    if cases == positions:
        return 1.0
    return float(distributions.beta.ppf(confidence, cases + 1, positions - cases))


def one_sided_rate_test(
    near_ties: int, positions: int, stock_disagreements: int, stock_positions: int, level: float = 0.01
) -> RateTest:
    """Exact test that an arm's rate of near ties is not above stock's own rate of disagreement.

    Both rates are estimates, so the binomial count of the arm is tested conditionally on the total
    of both counts: under equal rates the arm's share of that total is hypergeometric (Fisher's
    exact test, one-sided). The level is exact for every common rate and every pair of sample sizes,
    zero disagreements of stock included, where the arm fails once
    (positions / (positions + stock_positions)) ** near_ties drops below the level. The
    alternative, a binomial test against an upper bound of stock's rate, would excuse a high rate
    whenever stock was measured on few positions. So does this test, but only as far as chance
    goes; `blind_below` tells how far.

    Raises:
        UndefinedMetric: a side has no position.
    """
    _require_counts(near_ties, positions, "position of the arm")
    _require_counts(stock_disagreements, stock_positions, "position of stock against itself")
    p_value = float(
        distributions.hypergeom.sf(
            near_ties - 1, positions + stock_positions, near_ties + stock_disagreements, positions
        )
    )
    p_value = min(1.0, max(0.0, p_value))
    return RateTest(
        near_ties=near_ties,
        positions=positions,
        stock_disagreements=stock_disagreements,
        stock_positions=stock_positions,
        p_value=p_value,
        level=level,
        passed=p_value > level,
    )


def blind_below(
    positions: int, stock_disagreements: int, stock_positions: int, level: float = 0.01
) -> int | None:
    """Fewest near ties that fail `one_sided_rate_test`; None when even all positions would pass."""

    def passes(near_ties: int) -> bool:
        return one_sided_rate_test(near_ties, positions, stock_disagreements, stock_positions, level).passed

    if passes(positions):
        return None
    low, high = 0, positions  # passes(low), not passes(high): the p-value falls with near_ties
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return high


def _require_counts(cases: int, positions: int, what: str) -> None:
    if positions < 1:
        raise UndefinedMetric(f"a rate has no value: no {what} was judged")
    if not 0 <= cases <= positions:
        raise ValueError(f"{cases} cases in {positions} positions")
