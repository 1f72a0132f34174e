"""Standard error of a log ratio and its degrees of freedom, by jackknife.

The prompts' degrees of freedom are those of their variance estimate: lowered when the influence of
prompts is heavy-tailed, and when a few prompts carry most of the time.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from harness.stats.grid import Floats, Grid
from harness.stats.ratios import Statistic

FLAT = 1e-12  # standard error of a log ratio below which it is rounding
_CHUNK = 2_000_000  # numbers in one temporary array


class Spread(NamedTuple):
    """Standard error of the log ratio, with its degrees of freedom."""

    source: Literal["launches", "blocks", "prompts"]  # where the run's part was estimated
    standard_error: float
    degrees_of_freedom: float


def spreads(grid: Grid, statistic: Statistic) -> tuple[Spread, ...]:
    """Spread of prompts and run together; the run's part between launches and within them.

    One entry per way of estimating the run's part that the data allows; with a single block the
    prompts stand alone.
    """
    height, width = grid.baseline_ns.shape
    of_prompts, prompts_df = _prompt_variance(grid, statistic)
    parts: list[tuple[Literal["launches", "blocks", "prompts"], float, float]] = []
    ones = np.ones((height, width))
    if grid.launches > 1:
        without = 1.0 - (grid.launch_of[None, :] == np.arange(grid.launches)[:, None])
        left = statistic.log_ratio(grid, without, ones[:1].repeat(grid.launches, axis=0))
        parts.append(("launches", _jackknife_variance(left), float(grid.launches - 1)))
    if grid.blocks > 1:
        left = statistic.log_ratio(grid, _without_block(grid), ones)
        by_launch = [left[grid.launch_of == launch] for launch in range(grid.launches)]
        several = [part for part in by_launch if len(part) > 1]
        parts.append(
            (
                "blocks",
                sum(_jackknife_variance(part) for part in several),
                float(sum(len(part) - 1 for part in several)),
            )
        )
    if not parts:
        parts.append(("prompts", 0.0, 1.0))
    return tuple(
        Spread(
            source,
            float(np.sqrt(of_prompts + of_run)),
            _satterthwaite((of_prompts, prompts_df), (of_run, df)),
        )
        for source, of_run, df in parts
    )


def _without_block(grid: Grid) -> Floats:
    """Weights [rows, rows] that leave out one block and let its launch weigh as before."""
    sizes = np.bincount(grid.launch_of)[grid.launch_of].astype(np.float64)
    scale = np.divide(sizes, sizes - 1.0, out=np.ones_like(sizes), where=sizes > 1.0)
    same = grid.launch_of[:, None] == grid.launch_of[None, :]
    weights = np.where(same, scale[:, None], 1.0)
    np.fill_diagonal(weights, 0.0)
    return weights


def _prompt_variance(grid: Grid, statistic: Statistic) -> tuple[float, float]:
    """Jackknife variance over units, and its degrees of freedom."""
    height, width = grid.baseline_ns.shape
    if width < 2:
        return 0.0, 1.0
    step = max(1, _CHUNK // width)
    parts = []
    for start in range(0, width, step):
        rows = range(start, min(start + step, width))
        weights = np.ones((len(rows), width))
        weights[np.arange(len(rows)), list(rows)] = 0.0
        parts.append(statistic.log_ratio(grid, np.ones((len(rows), height)), weights))
    left = np.concatenate(parts)
    left = left[np.isfinite(left)]
    variance = _jackknife_variance(left)
    if variance < FLAT**2:
        return variance, float(width - 1)
    centred = left - left.mean()
    excess = max(0.0, float(np.mean(centred**4) / np.mean(centred**2) ** 2) - 3.0)
    from_tails = 2.0 / (2.0 / (width - 1) + excess / width)
    from_shares = 1.0 / float(np.sum(statistic.shares(grid) ** 2)) - 1.0
    return variance, max(1.0, min(from_tails, from_shares))


def _jackknife_variance(left_out: Floats) -> float:
    """Variance of a statistic from its values with one unit left out at a time."""
    known = left_out[np.isfinite(left_out)]
    if len(known) < 2:
        return 0.0
    return float((len(known) - 1) / len(known) * np.sum((known - known.mean()) ** 2))


def _satterthwaite(*parts: tuple[float, float]) -> float:
    """Degrees of freedom of a sum of independent variance estimates (variance, its own df)."""
    total = sum(variance for variance, _ in parts)
    if total < FLAT**2:
        return 1.0
    return max(1.0, total**2 / sum(variance**2 / df for variance, df in parts))
