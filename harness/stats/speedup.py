"""Speedup of an arm over the baseline: headline, typical prompt, decode only, by category, by set.

Headline: summed time of the baseline over summed time of the arm on the same work, which is what
a user of this workload gains. The geometric mean of per-prompt ratios says what a typical prompt
gains; the two may disagree in sign when a few long prompts carry the time, so both are printed.

When token counts differ between the arms of a pair (sampling), every ratio is one of time per
token, and the method says so. In batched runs the headline and the decode-only ratio count each
batch's wall time once; the geometric mean, categories, sets and the share of slower prompts compare
each request's own latency, since the time of a batch cannot be split among its members.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from harness.errors import UsageError
from harness.plan import StatsSpec
from harness.records import Response
from harness.results import CategorySpeedup, Interval, SetSpeedup
from harness.stats.bootstrap import draw_rows, estimate, family_level, interval
from harness.stats.grid import Floats, Grid, lay_out
from harness.stats.pairs import pair_batches, pair_requests
from harness.stats.ratios import GEOMETRIC_MEAN, TOTAL_RATIO, Statistic

MIN_RESAMPLES = 100


class Speedup(NamedTuple):
    """All ratios of one arm; None where there is no pair to take it from."""

    headline: Interval | None
    geometric_mean: Interval | None
    decode: Interval | None
    by_category: tuple[CategorySpeedup, ...]
    by_set: tuple[SetSpeedup, ...]
    slower_share: float | None
    grid: Grid | None  # the paired requests
    pairs: int  # complete pairs of requests
    lost: int  # pairs with a failed or missing side


def compare_arms(
    baseline: Sequence[Response],
    arm: Sequence[Response],
    categories: Mapping[str, str],
    spec: StatsSpec,
    *,
    sets: Mapping[str, str] | None = None,
    batched: bool = False,
) -> Speedup:
    """Compare two arms on the work both have done.

    Args:
        baseline: responses of the arm that is divided by, usually `ar`.
        arm: responses of the other arm, same schedule.
        categories: prompt id -> category.
        spec: confidence, resamples, seed.
        sets: prompt id -> evaluation set; None tells no set apart.
        batched: whether requests were decoded together (`measure.batch` > 1).

    Raises:
        UsageError: `spec` asks for what no interval has.
        DataError: an arm answers a prompt twice in one block.
    """
    check_spec(spec)
    pairing = pair_requests(baseline, arm)
    grid = lay_out(pairing.pairs)
    work = pair_batches(baseline, arm).pairs if batched else pairing.pairs
    batch_remark = "wall time of each batch once" if batched else ""
    latency_remark = "latency of each request" if batched else ""
    return Speedup(
        headline=_ratio(lay_out(work), TOTAL_RATIO, spec, batch_remark),
        geometric_mean=_ratio(grid, GEOMETRIC_MEAN, spec, latency_remark),
        decode=_ratio(lay_out(work, "decode"), TOTAL_RATIO, spec, batch_remark),
        by_category=tuple(
            CategorySpeedup(category=name, prompts=prompts, speedup=found)
            for name, prompts, found in _by_group(grid, categories, spec, latency_remark, "categories")
        ),
        by_set=tuple(
            SetSpeedup(set_name=name, prompts=prompts, speedup=found)
            for name, prompts, found in _by_group(grid, sets or {}, spec, latency_remark, "sets")
        ),
        slower_share=None if grid is None else slower_share(grid),
        grid=grid,
        pairs=len(pairing.pairs),
        lost=pairing.lost,
    )


def slower_share(grid: Grid) -> float | None:
    """Share of prompts on which the arm took longer (per token) than the baseline, over all blocks."""
    ratios = prompt_ratios(grid)
    known = ratios[np.isfinite(ratios)]
    return float(np.mean(known < 1.0)) if len(known) else None


def prompt_ratios(grid: Grid) -> Floats:
    """Ratio of each prompt [units], of time (per token) summed over all blocks; NaN without one."""
    ratios = _quotient(grid.baseline_ns.sum(axis=0), grid.arm_ns.sum(axis=0))
    if grid.equal_tokens:
        return ratios
    return ratios * _quotient(grid.arm_tokens.sum(axis=0), grid.baseline_tokens.sum(axis=0))


def check_spec(spec: StatsSpec) -> None:
    """Refuse settings no interval can be made with.

    Raises:
        UsageError: naming the field of the plan.
    """
    if not 0.5 < spec.confidence < 1.0:
        raise UsageError(f"stats.confidence must lie between 0.5 and 1, got {spec.confidence}")
    if spec.resamples < MIN_RESAMPLES:
        raise UsageError(f"stats.resamples must be at least {MIN_RESAMPLES}, got {spec.resamples}")
    if not 0.0 <= spec.equivalence_margin < 1.0:
        raise UsageError(f"stats.equivalence_margin must lie in [0, 1), got {spec.equivalence_margin}")
    if spec.seed < 0:
        raise UsageError(f"stats.seed must be 0 or more, got {spec.seed}")


def _ratio(grid: Grid | None, statistic: Statistic, spec: StatsSpec, remark: str) -> Interval | None:
    if grid is None:
        return None
    rng = np.random.default_rng(spec.seed)
    found = estimate(grid, statistic, draw_rows(grid.launch_of, spec.resamples, rng), rng)
    return None if found is None else interval(found, spec.confidence, _remarks(grid, remark))


def _by_group(
    grid: Grid | None, groups: Mapping[str, str], spec: StatsSpec, remark: str, what: str
) -> Iterator[tuple[str, int, Interval]]:
    """Name, prompts and ratio of each group of prompts, by name; none where nothing is grouped."""
    if grid is None or not groups:
        return
    members: dict[str, list[int]] = {}
    for column, prompt in enumerate(grid.units):
        members.setdefault(groups[prompt], []).append(column)
    rng = np.random.default_rng(spec.seed)
    rows = draw_rows(grid.launch_of, spec.resamples, rng)
    parts = {name: grid.columns(members[name]) for name in sorted(members)}
    found = {name: estimate(part, TOTAL_RATIO, rows, rng) for name, part in parts.items()}
    known = {name: one for name, one in found.items() if one is not None}
    level = family_level(list(known.values()), spec.confidence)
    joint = f"simultaneous over {len(known)} {what} (max-T)" if len(known) > 1 else ""
    for name, one in known.items():
        yield name, one.units, interval(one, spec.confidence, _remarks(parts[name], remark, joint), level)


def _remarks(grid: Grid, *remarks: str) -> str:
    per_token = "" if grid.equal_tokens else "time per token, as token counts differ"
    return "; ".join(text for text in (per_token, *remarks) if text)


def _quotient(above: Floats, below: Floats) -> Floats:
    quotient: Floats = np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)
    return quotient
