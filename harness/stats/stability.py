"""Reasons why a result may not hold up when measured again, in words, with what to do.

Nothing is ever dropped here: a slow request may be the truth. Reasons are warnings; what makes a
run invalid is decided by the audits.
"""

from __future__ import annotations

import numpy as np
from scipy import stats as distributions

from harness.stats.bootstrap import FEW_LAUNCHES
from harness.stats.grid import Floats, Grid
from harness.stats.ratios import TOTAL_RATIO

FEW_PROMPTS = 20
SPREAD = 0.01  # of the ratio between launches, below which it is not worth a word
DRIFT = 0.03  # of the baseline's time within a launch
DOMINANT = 0.25  # share of the baseline's time
FAR = 6.0  # robust standard deviations
UNEVEN = 0.02  # of the mean token count, as in the equivalence margin


def unstable_run(grid: Grid) -> tuple[str, ...]:
    """Reasons that hold for the run as a whole, read off the baseline's side of the pairs."""
    reasons = (_few_launches(grid), _few_prompts(grid), _drift(grid), _dominant_prompt(grid))
    return tuple(reason for reason in reasons if reason is not None)


def unstable_arm(arm: str, grid: Grid) -> tuple[str, ...]:
    """Reasons that hold for one arm against the baseline."""
    reasons = (_launch_spread(grid), _ratio_drift(grid), _outliers(grid), _uneven_tokens(grid))
    return tuple(f"arm {arm}: {reason}" for reason in reasons if reason is not None)


def _few_launches(grid: Grid) -> str | None:
    if grid.launches >= FEW_LAUNCHES:
        return None
    unknown = "unknown" if grid.launches == 1 else "hardly known"
    return (
        f"launches: {grid.launches}, so the spread between launches is {unknown}; set `measure.launches` "
        f"to {FEW_LAUNCHES} or more before relying on a small difference"
    )


def _few_prompts(grid: Grid) -> str | None:
    if grid.prompts >= FEW_PROMPTS:
        return None
    return (
        f"prompts: {grid.prompts}, so the intervals say little about other prompts; "
        f"draw {FEW_PROMPTS} or more"
    )


def _drift(grid: Grid) -> str | None:
    """Trend of the baseline's time over the blocks of a launch, on prompts every block holds."""
    change = _trend(grid, np.log(_complete(grid.baseline_ns, grid)))
    if change is None or abs(change) <= DRIFT:
        return None
    return (
        f"drift: the baseline's time changed by {change:+.1%} from the first block of a launch to the last; "
        "mirrored blocks cancel a steady drift, but let the machine reach its steady clocks "
        "(more `measure.warmup_prompts`, locked clocks)"
    )


def _dominant_prompt(grid: Grid) -> str | None:
    times = grid.baseline_ns.sum(axis=0)
    worst = int(np.argmax(times))
    share = float(times[worst] / times.sum())
    if share <= max(DOMINANT, 2.0 / len(times)):
        return None
    return (
        f"prompt {grid.units[worst]} takes {share:.0%} of the baseline's time, so the headline is mostly its "
        "ratio; read the geometric mean beside it and draw more prompts"
    )


def _launch_spread(grid: Grid) -> str | None:
    """Launches apart by more than their blocks explain (one-way analysis of variance, 5 %)."""
    ratios = _row_ratios(grid)
    if grid.launches < 2:
        return None
    by_launch = [ratios[grid.launch_of == launch] for launch in range(grid.launches)]
    means = np.array([part.mean() for part in by_launch])
    told = ", ".join(f"{np.exp(mean):.3f}" for mean in means)
    within = sum(float(np.sum((part - part.mean()) ** 2)) for part in by_launch)
    df = len(ratios) - grid.launches
    spread = float(means.max() - means.min())
    if spread > SPREAD and df > 0:
        between = sum(len(part) * (part.mean() - ratios.mean()) ** 2 for part in by_launch) / (
            grid.launches - 1
        )
        limit = float(distributions.f.isf(0.05, grid.launches - 1, df)) * within / df
        if between > limit:
            return (
                f"launches differ by {np.expm1(spread):.1%}, more than their blocks explain (speedup by "
                f"launch: {told}); raise `measure.launches`, not `measure.blocks`"
            )
    if grid.launches < FEW_LAUNCHES:
        return f"speedup by launch: {told}; judge the interval by these as well"
    return None


def _ratio_drift(grid: Grid) -> str | None:
    change = _trend(grid, _row_ratios(grid))
    if change is None or abs(change) <= DRIFT:
        return None
    return (
        f"its speedup changed by {change:+.1%} from the first block of a launch to the last; "
        "look for a cache that warms up or a drafter that learns, and reset it between blocks"
    )


def _outliers(grid: Grid) -> str | None:
    """Pairs far from their prompt's usual ratio; the headline with and without them."""
    if len(grid.launch_of) < 3:
        return None
    ratios = _cell_ratios(grid)
    departures = ratios - np.nanmedian(ratios, axis=0)
    scale = 1.4826 * float(np.nanmedian(np.abs(departures)))
    far = np.abs(np.nan_to_num(departures)) > max(FAR * scale, SPREAD)
    count = int(far.sum())
    if count == 0:
        return None
    row, column = np.unravel_index(int(np.nanargmax(np.abs(departures))), departures.shape)
    kept = np.where(far, 0.0, 1.0)
    ones = np.ones((1, len(grid.launch_of)))
    with_them = np.exp(TOTAL_RATIO.log_ratio(grid, ones, np.ones((1, len(grid.units))))[0])
    without = np.exp(TOTAL_RATIO.log_ratio(grid.masked(kept), ones, np.ones((1, len(grid.units))))[0])
    return (
        f"{count} of {int(grid.present.sum())} pairs lie far from their prompt's usual ratio, the farthest "
        f"{grid.units[column]} in launch {int(grid.launch_of[row])}; they are kept: the headline is "
        f"{with_them:.3f} with and {without:.3f} without them; look for other load at that time"
    )


def _uneven_tokens(grid: Grid) -> str | None:
    baseline, arm = float(grid.baseline_tokens.sum()), float(grid.arm_tokens.sum())
    if baseline == 0.0 or abs(arm / baseline - 1.0) <= UNEVEN:
        return None
    return (
        f"it emitted {arm / baseline - 1.0:+.1%} tokens against the baseline, so ratios are of time per "
        "token over outputs of different length; check stops, or draw more prompts when sampling"
    )


def _trend(grid: Grid, values: Floats) -> float | None:
    """Relative change from first to last block of a launch by least squares, launches pooled."""
    if grid.blocks < 2 or not np.isfinite(values).all():
        return None
    times, heights = [], []
    for launch in range(grid.launches):
        part = values[grid.launch_of == launch]
        times.append(np.arange(len(part)) - (len(part) - 1) / 2.0)
        heights.append(part - part.mean())
    time, height = np.concatenate(times), np.concatenate(heights)
    slope = float(np.sum(time * height) / np.sum(time**2))
    return float(np.expm1(slope * (grid.blocks - 1)))


def _complete(cells: Floats, grid: Grid) -> Floats:
    """Row sums over the units that no row has lost; NaN when there is none."""
    whole = grid.present.all(axis=0)
    if not whole.any():
        return np.full(len(cells), np.nan)
    sums: Floats = cells[:, whole].sum(axis=1)
    return sums


def _row_ratios(grid: Grid) -> Floats:
    """Log ratio of each row, over the units that no row has lost (over its own when there is none)."""
    whole = grid.present.all(axis=0)
    if whole.any():
        grid = grid.columns(np.flatnonzero(whole).tolist())
    return TOTAL_RATIO.log_ratio(
        grid, np.eye(len(grid.launch_of)), np.ones((len(grid.launch_of), len(grid.units)))
    )


def _cell_ratios(grid: Grid) -> Floats:
    """Log ratio of each pair, per token; NaN where it was lost."""
    ratios = np.full(grid.baseline_ns.shape, np.nan)
    held = grid.present & (grid.baseline_tokens > 0) & (grid.arm_tokens > 0)
    ratios[held] = np.log(grid.baseline_ns[held] / grid.arm_ns[held])
    if not grid.equal_tokens:
        ratios[held] += np.log(grid.arm_tokens[held] / grid.baseline_tokens[held])
    return ratios
