"""How many nodes of a tree to verify: as many as give the most tokens a second, at measured prices.

Source of the objective: CaDDTree (arXiv 2606.01813), tokens of a step over its cost. Measured costs are a
staircase (tiles, sizes that graphs are recorded for), so the ratio has more than one peak: it is evaluated at
the end of every stair, where a stair is used in full, and the largest wins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reference_mechanisms.verification.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured seconds of a step; they hold for one device, batch size and context length."""

    draft: float  # of drafting, and of all that does not depend on the rows
    verify: Mapping[int, float]  # rows of a verify step, the anchor among them -> seconds

    def __post_init__(self) -> None:
        """Hold that there are prices.

        Raises:
            ValueError: naming the field.
        """
        if not self.verify:
            raise ValueError("`verify` has no entry: without measured costs every budget looks free")
        if min(self.verify) < 1 or min(self.verify.values()) <= 0.0 or self.draft < 0.0:
            raise ValueError("`draft` is at least 0, and `verify` has rows from 1 and seconds above 0")


def best_budget(path_probabilities: Sequence[float], costs: Costs) -> int:
    """The number of nodes with the most expected tokens a second; the smaller of equals.

    Args:
        path_probabilities: of the nodes of a tree in its order, that the target's output begins so.
        costs: of steps; a budget whose rows lie between two entries costs as the larger, one behind the last
            entry is not considered.
    """
    tokens = list(itertools.accumulate(path_probabilities, initial=1.0))
    best, most = 0, 0.0
    for rows in sorted(costs.verify):
        budget = min(rows - 1, len(path_probabilities))
        rate = tokens[budget] / (costs.draft + costs.verify[rows])
        if rate > most:
            best, most = budget, rate
    return best


def best_rows(tokens: Mapping[int, float], costs: Costs, most: int) -> int:
    """Rows of the steps of fixed shape with the most tokens a second; the fewer of equals.

    Args:
        tokens: rows of a step -> tokens of one, mean.
        costs: of these steps.
        most: rows.

    Raises:
        ValueError: no entry has so few rows, or one has no price.
    """
    rates = {
        rows: told / (costs.draft + costs.verify[rows])
        for rows, told in sorted(tokens.items())
        if rows <= most and rows in costs.verify
    }
    if not rates:
        raise ValueError(f"no steps of at most {most} rows are among the measured ones: {sorted(tokens)}")
    return max(rates, key=lambda rows: rates[rows])


def paying(tree: DraftTree, costs: Costs) -> DraftTree:
    """The beginning of a tree in the order of its probabilities that is worth most at these costs."""
    worth = [math.exp(found) for found in tree.path_log_probabilities]
    return tree.first(best_budget(worth, costs))
