"""Ranked gaps between what stock's steps take and what physics and better drafts would leave. Pure.

Stages come from verify steps of a run alone, so that every engine that tells its steps can be asked:
arms of several draft lengths give the time of a step as base plus rows, a drafter that costs nothing
(null, replay) gives the drafter's share, and the survival of drafts by position gives how few steps the
tokens could have taken. A profile splits the base further.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from agent_loop.cost_model.floors import Machine, ModelSize, prefill_floor_s, step_floor_s
from agent_loop.records import Gap
from harness.codec import Record
from harness.oracle.stored import StoredRun
from harness.records import Response

FREE_DRAFTERS = ("null", "replay")  # kinds of arms whose drafts cost nothing
MOST_DRAFTS = 16  # positions that the acceptance ceiling reckons with
MEASURED, FITTED, DERIVED = 1.0, 0.7, 0.4  # confidence in a component


class CeilingModel(Record, frozen=True):
    """Where stock's time goes and how much of it could go away."""

    arm: str
    seconds: float  # of the arm's responses
    tokens: int
    steps: int
    floor_s: float  # with the best drafts that survival allows, at the machine's peaks
    speedup: float  # seconds / floor_s
    acceptance_length: float
    acceptance_ceiling: float  # with this drafter and unlimited, free draft positions
    gaps: tuple[Gap, ...]  # largest first
    machine: Machine
    model: ModelSize

    @property
    def closable_share(self) -> float:
        """Share of the time that could go away."""
        return max(0.0, 1.0 - 1.0 / self.speedup)


class StepFit(NamedTuple):
    """Seconds of a step: base + per_row * rows."""

    base_s: float
    per_row_s: float
    shapes: int  # distinct numbers of rows behind it


def ceiling(
    run: StoredRun,
    arm: str,
    machine: Machine,
    model: ModelSize,
    profile: Mapping[str, float] | None = None,
) -> CeilingModel:
    """The gaps of an arm.

    Args:
        run: with this arm and, where they can be had, arms "ar", null or replay beside it.
        arm: usually "stock".
        machine: peaks.
        model: size of the target.
        profile: share of a step's time by stage ("weights", "attention", "sampling", "host", "launch",
            "other"), from a profiler; None leaves the base in one piece.

    Raises:
        ValueError: the arm has no finished response with a verify step.
    """
    mine = [one for one in run.responses if one.arm == arm and one.status == "ok" and one.steps]
    if not mine:
        raise ValueError(f"arm {arm} has no response with verify steps; a server does not tell them")
    kinds = {one.name: one.kind for one in run.job.plan.arms}
    free = {name for name, kind in kinds.items() if kind in FREE_DRAFTERS or kind == "ar"}
    steps = [step for one in mine for step in one.steps]
    count = len(steps)
    seconds = sum((one.end_ns or 0) / 1e9 for one in mine)
    tokens = sum(len(one.token_ids) for one in mine)
    prefill = sum((one.first_token_ns or 0) / 1e9 for one in mine)
    prefill_floor = sum(prefill_floor_s(machine, model, one.prompt_tokens) for one in mine)
    times = [time for one in mine for time in step_seconds(one)]
    rows = [step.num_draft_tokens + 1 for step in steps]
    fit = fit_steps([one for one in run.responses if one.arm in free and one.status == "ok"])
    if fit is None:
        fit = fit_steps(mine)
    verify = [fit.base_s + fit.per_row_s * n for n in rows] if fit is not None else times
    drafting = max(0.0, sum(times) - sum(verify))
    best = acceptance_ceiling([step.num_accepted_tokens for step in steps], rows)
    emitted = sum(step.num_emitted_tokens for step in steps)
    least = emitted / best
    step_floor = step_floor_s(machine, model, max(1, round(best)))
    base = sum(verify) - sum(_row_seconds(fit, n) for n in rows)
    gaps = [
        _gap("prefill", prefill, prefill_floor, MEASURED, "time to the first token; two operations a weight"),
        _gap(
            "acceptance",
            sum(times),
            sum(times) * min(1.0, least / count),
            FITTED,
            f"{count} steps, {least:.0f} with every position that survives",
        ),
        *_base_gaps(base, count * model.weight_bytes / machine.bytes_per_s, profile),
        _gap(
            "rows",
            sum(_row_seconds(fit, n) for n in rows),
            sum(2.0 * model.parameters * n / machine.flops_per_s for n in rows),
            FITTED if fit is not None and fit.shapes > 1 else DERIVED,
            "growth of a step with its rows; two operations a weight and row",
        ),
    ]
    if free:
        gaps.append(
            _gap("drafter", drafting, 0.0, FITTED, "step time above a step of as many rows with free drafts")
        )
    closable = sum(gap.closable_s for gap in gaps) or 1.0
    ranked = sorted(
        (msgspec.structs.replace(gap, share=gap.closable_s / closable) for gap in gaps),
        key=lambda gap: (-gap.share, gap.component),
    )
    floor = prefill_floor + least * step_floor
    return CeilingModel(
        arm=arm,
        seconds=seconds,
        tokens=tokens,
        steps=count,
        floor_s=floor,
        speedup=max(1.0, seconds / floor),
        acceptance_length=emitted / count,
        acceptance_ceiling=best,
        gaps=tuple(ranked),
        machine=machine,
        model=model,
    )


def step_seconds(response: Response) -> list[float]:
    """Seconds of every verify step, from the one in front."""
    ends = [response.first_token_ns or 0, *(step.at_ns for step in response.steps)]
    return [(b - a) / 1e9 for a, b in itertools.pairwise(ends)]


def fit_steps(responses: Iterable[Response]) -> StepFit | None:
    """Least squares over the median step of each number of rows; None without steps."""
    by_rows: dict[int, list[float]] = {}
    for one in responses:
        for step, took in zip(one.steps, step_seconds(one), strict=True):
            by_rows.setdefault(step.num_draft_tokens + 1, []).append(took)
    if not by_rows:
        return None
    rows = np.array(sorted(by_rows), dtype=np.float64)
    medians = np.array([float(np.median(by_rows[int(n)])) for n in rows])
    if len(rows) == 1:
        return StepFit(float(medians[0]), 0.0, 1)
    weights = np.sqrt([len(by_rows[int(n)]) for n in rows])
    slope, base = np.polyfit(rows, medians, 1, w=weights)
    if slope < 0.0:
        return StepFit(float(np.average(medians, weights=weights**2)), 0.0, len(rows))
    return StepFit(max(0.0, float(base)), float(slope), len(rows))


def acceptance_ceiling(accepted: Sequence[int], rows: Sequence[int]) -> float:
    """Acceptance length that the survival of drafts allows with `MOST_DRAFTS` positions.

    Of the steps that accepted the drafts before and drafted one more, the share that accepted it is
    carried on behind the last observed position.
    """
    length, alive, rate = 1.0, 1.0, 0.0
    for position in range(MOST_DRAFTS):
        tried = sum(n - 1 > position and a >= position for a, n in zip(accepted, rows, strict=True))
        kept = sum(n - 1 > position and a > position for a, n in zip(accepted, rows, strict=True))
        if tried:
            rate = kept / tried
        alive *= rate
        length += alive
        if alive < 1e-6:
            break
    return length


def _base_gaps(base: float, floor: float, profile: Mapping[str, float] | None) -> list[Gap]:
    """The part of a step that does not grow with rows, whole or by the stages of a profile."""
    if not profile:
        return [_gap("weights", base, floor, DERIVED, "base of a step; every weight read once")]
    total = math.fsum(profile.values())
    return [
        _gap(
            stage,
            base * share / total,
            floor if stage == "weights" else 0.0,
            MEASURED,
            "share of a profiled step" + ("; every weight read once" if stage == "weights" else ""),
        )
        for stage, share in sorted(profile.items())
    ]


def _row_seconds(fit: StepFit | None, rows: int) -> float:
    return 0.0 if fit is None else fit.per_row_s * rows


def _gap(component: str, measured: float, floor: float, confidence: float, basis: str) -> Gap:
    return Gap(
        component=component,
        measured_s=measured,
        floor_s=floor,
        share=0.0,
        confidence=confidence,
        basis=basis if measured >= floor else f"{basis}; BELOW ITS FLOOR: measurement or peak is wrong",
    )
