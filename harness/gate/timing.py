"""Whether an arm is no slower than it was, from two runs on the same GPU, each with its own baseline.

Paired non-inferiority: per prompt the speedup over the run's own `ar` is compared, so that a machine
that is as a whole slower today cancels out; launches of the two runs are matched by their number and
resampled together. The change passes if the lower end of the ratio of speedups lies above
1 / (1 + margin), a one-sided test at (1 - confidence) / 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from harness.oracle.stored import StoredRun
from harness.plan import StatsSpec
from harness.results import Interval, Report
from harness.stats.bootstrap import draw_rows, estimate, interval
from harness.stats.equivalence import has_width
from harness.stats.grid import Grid
from harness.stats.pairs import pair_requests
from harness.stats.ratios import GEOMETRIC_MEAN

UNIT = 1e9  # a ratio as nanoseconds, for tables of times


class ArmTiming(NamedTuple):
    """One arm, before and after."""

    arm: str
    ratio: Interval | None  # speedup now over speedup before; None: no prompt is in both
    passed: bool
    detail: str


def why_not_timed(before: StoredRun | None, after: StoredRun) -> str | None:
    """Why times may not decide here; None where they may."""
    if before is None:
        return "the baseline is a golden, which holds no times"
    for name, run in (("baseline", before), ("candidate", after)):
        plan = run.job.plan
        if not plan.measure.dedicated_gpu:
            return f"the plan of the {name} does not say `measure.dedicated_gpu = true`"
        if run.report.status != "valid":
            return f"the {name} is an invalid run: {'; '.join(run.report.reasons)}"
        if plan.measure.batch > 1:
            return f"the {name} ran in batches, whose times have no prompt of their own"
    gpus = _gpus(before.report), _gpus(after.report)
    if gpus[0] != gpus[1] or not gpus[0]:
        return f"the GPUs are {gpus[0] or 'unknown'} and {gpus[1] or 'unknown'}"
    return None


def compare_times(before: StoredRun, after: StoredRun, margin: float) -> tuple[ArmTiming, ...]:
    """Every arm that both runs have, but for their baselines.

    Args:
        before: the run that is accepted.
        after: the run with the change.
        margin: by how much slower still counts as no slower.
    """
    names = [arm.name for arm in after.job.plan.arms if arm.name != after.job.plan.baseline.name]
    shared = [name for name in names if any(arm.name == name for arm in before.job.plan.arms)]
    return tuple(_arm(name, before, after, margin) for name in shared)


def _arm(name: str, before: StoredRun, after: StoredRun, margin: float) -> ArmTiming:
    grid = _ratios(name, before, after)
    spec = after.job.plan.stats
    found = None if grid is None else _interval(grid, spec)
    if found is None:
        return ArmTiming(name, None, passed=False, detail="no prompt was answered in both runs")
    limit = 1.0 / (1.0 + margin)
    passed = has_width(found) and found.low > limit
    word = "no slower" if passed else "slower" if found.high < limit else "not shown to be no slower"
    detail = (
        f"{word}: speedup over ar now / before {found.point:.3f} [{found.low:.3f}, {found.high:.3f}], "
        f"the limit is {limit:.3f}"
    )
    return ArmTiming(name, found, passed, detail)


def _interval(grid: Grid, spec: StatsSpec) -> Interval | None:
    rng = np.random.default_rng(spec.seed)
    found = estimate(grid, GEOMETRIC_MEAN, draw_rows(grid.launch_of, spec.resamples, rng), rng)
    return None if found is None else interval(found, spec.confidence, "paired non-inferiority")


def _ratios(name: str, before: StoredRun, after: StoredRun) -> Grid | None:
    """Cells are arm over ar: that of `before` as the baseline, that of `after` as the arm."""
    old, new = _cells(name, before), _cells(name, after)
    keys = sorted(old.keys() & new.keys())
    rows, units = sorted({key[:2] for key in keys}), sorted({key[2] for key in keys})
    if not keys or len(keys) != len(rows) * len(units):
        return None
    launches = sorted({launch for launch, _ in rows})
    table = [np.array([[cells[(*row, unit)] for unit in units] for row in rows]) for cells in (old, new)]
    ones = np.ones((len(rows), len(units)))
    return Grid(
        launch_of=np.array([launches.index(launch) for launch, _ in rows], dtype=np.int64),
        units=tuple(units),
        prompts=len(units),
        baseline_ns=table[0] * UNIT,
        arm_ns=table[1] * UNIT,
        baseline_tokens=ones,
        arm_tokens=ones,
    )


def _cells(name: str, run: StoredRun) -> Mapping[tuple[int, int, str], float]:
    """Time of the arm over time of the run's own baseline, by launch, block and prompt."""
    baseline = run.job.plan.baseline.name
    own = [response for response in run.responses if response.arm == name]
    base = [response for response in run.responses if response.arm == baseline]
    pairs = pair_requests(base, own).pairs
    return {
        (p.launch, p.block, p.prompts[0]): (p.arm.total_ns / p.arm.tokens)
        / (p.baseline.total_ns / p.baseline.tokens)
        for p in pairs
        if p.arm.tokens and p.baseline.tokens and p.baseline.total_ns
    }


def _gpus(report: Report) -> Sequence[str]:
    return sorted(str(gpu.get("name")) for gpu in report.environment.get("gpus") or ())
