"""The two ratios, as functions of weights on blocks and on units of work.

Resampling and leaving out are both weighting, so one function serves the point, its bootstrap
replicates and its jackknife.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from harness.stats.grid import Floats, Grid


class Statistic(NamedTuple):
    """A log ratio of baseline to arm as a function of weights on rows and units."""

    name: str
    log_ratio: Callable[[Grid, Floats, Floats], Floats]  # (grid, [n, rows], [n, units]) -> [n]
    shares: Callable[[Grid], Floats]  # [units] weight of each unit in the estimate, sum 1


def total_ratio(grid: Grid, rows: Floats, units: Floats) -> Floats:
    """Log of (sum of baseline time per token) / (sum of arm time per token).

    With equal token counts this is the plain ratio of summed times; with unequal ones (sampling)
    it is the ratio of the two rates in tokens per second.
    """

    def total(cells: Floats) -> Floats:
        sums: Floats = np.sum((units @ cells.T) * rows, axis=1)
        return sums

    ratio = log_or_nan(total(grid.baseline_ns)) - log_or_nan(total(grid.arm_ns))
    if grid.equal_tokens:
        return ratio
    return ratio - log_or_nan(total(grid.baseline_tokens)) + log_or_nan(total(grid.arm_tokens))


def geometric_mean(grid: Grid, rows: Floats, units: Floats) -> Floats:
    """Mean over units of the log ratio of their time (per token) summed over the rows."""
    ratios = log_or_nan(rows @ grid.baseline_ns) - log_or_nan(rows @ grid.arm_ns)
    if not grid.equal_tokens:
        ratios = ratios - log_or_nan(rows @ grid.baseline_tokens) + log_or_nan(rows @ grid.arm_tokens)
    known = np.isfinite(ratios)
    weights = np.where(known, units, 0.0)
    total = weights.sum(axis=1)
    summed = np.sum(np.where(known, ratios, 0.0) * weights, axis=1)
    means: Floats = np.divide(summed, total, out=np.full_like(summed, np.nan), where=total > 0)
    return means


def _time_shares(grid: Grid) -> Floats:
    times: Floats = grid.baseline_ns.sum(axis=0)
    return times / times.sum() if times.sum() > 0 else _even_shares(grid)


def _even_shares(grid: Grid) -> Floats:
    return np.full(len(grid.units), 1.0 / len(grid.units))


TOTAL_RATIO = Statistic("total-time ratio", total_ratio, _time_shares)
GEOMETRIC_MEAN = Statistic("geometric mean of per-prompt ratios", geometric_mean, _even_shares)


def log_or_nan(values: Floats) -> Floats:
    """Natural log; NaN where the value is not positive."""
    logs: Floats = np.log(values, out=np.full_like(values, np.nan), where=values > 0)
    return logs
