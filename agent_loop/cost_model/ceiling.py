"""Ranked gaps between what stock's steps take and what physics and better drafts would leave. Pure.

Stages come from verify steps of a run alone, so that every engine that tells its steps can be asked:
arms of several draft lengths give the time of a step as base plus rows, a drafter that costs nothing
(null, replay) gives the drafter's share, and the survival of drafts by position, or the best tree that was
measured, gives how few steps the tokens could have taken. A trace tells the stages of a step directly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from agent_loop.cost_model.floors import (
    Machine,
    ModelSize,
    attention_floor_s,
    prefill_floor_s,
    sampling_floor_s,
    step_floor_s,
)
from agent_loop.cost_model.serving import disagreement, from_chunks, with_steps
from agent_loop.cost_model.stages import ATTENTION, LAUNCH, SAMPLING, WEIGHTS
from agent_loop.cost_model.trees import TreePoint, best_trees, tree_points
from agent_loop.records import Gap
from harness.codec import Record
from harness.oracle.stored import StoredRun
from harness.records import Response

FREE_DRAFTERS = ("null", "replay")  # kinds of arms whose drafts cost nothing
MOST_DRAFTS = 16  # positions that the acceptance ceiling reckons with
MEASURED, TRACED, FITTED, DERIVED = 1.0, 0.8, 0.7, 0.4  # confidence in a component; traced are a few steps
AGREES = 0.1  # that a server's count may differ from what arrived; else half of the confidence goes
ARRIVED = 0.7  # and what is left of it where steps are known by what arrived from a server


class CeilingModel(Record, frozen=True):
    """Where stock's time goes and how much of it could go away."""

    arm: str
    seconds: float  # of the arm's responses
    tokens: int
    steps: int
    floor_s: float  # with the best drafts that survival allows, at the machine's peaks
    speedup: float  # seconds / floor_s
    acceptance_length: float
    acceptance_ceiling: float  # with this drafter, by survival or by the best tree, whichever is more
    gaps: tuple[Gap, ...]  # largest first
    machine: Machine
    model: ModelSize
    survival_ceiling: float | None = None  # with unlimited, free positions of chains
    trees: tuple[TreePoint, ...] = ()  # that were measured beside the arm, the smallest first

    @property
    def closable_share(self) -> float:
        """Share of the time that could go away."""
        return max(0.0, 1.0 - 1.0 / self.speedup)


class StepFit(NamedTuple):
    """Seconds of a step: base + per_row * rows."""

    base_s: float
    per_row_s: float  # 0: no growth is told


def ceiling(
    run: StoredRun,
    arm: str,
    machine: Machine,
    model: ModelSize,
    profile: Mapping[str, float] | None = None,
) -> CeilingModel:
    """The gaps of an arm.

    Args:
        run: with this arm and, where they can be had, arms "ar", null or replay beside it, and arms of trees.
        arm: usually "stock".
        machine: peaks.
        model: size of the target.
        profile: a step's time by stage ("weights", "attention", "drafter", "sampling", "host", "launch",
            "other"), from a trace; None leaves what does not grow with rows in one piece.

    Raises:
        ValueError: the arm has no finished response with a verify step, or its requests share their steps.
    """
    if run.job.plan.measure.batch > 1:
        raise ValueError("requests of a batch share their steps; give a run with `measure.batch` = 1")
    arrived = from_chunks(run, arm)
    run = with_steps(run)
    mine = [one for one in run.responses if one.arm == arm and one.status == "ok" and one.steps]
    if not mine:
        raise ValueError(f"arm {arm} has no response with verify steps, and none that came in chunks")
    steps = [step for one in mine for step in one.steps]
    rows = [step.num_draft_tokens + 1 for step in steps]
    times = [time for one in mine for time in step_seconds(one)]
    prefill = sum((one.first_token_ns or 0) / 1e9 for one in mine)
    prefill_floor = sum(prefill_floor_s(machine, model, one.prompt_tokens) for one in mine)
    survival = acceptance_ceiling([step.num_accepted_tokens for step in steps], rows)
    points = tree_points(run)
    trees = best_trees(points)
    best = survival if trees is None else max(survival, trees.longest.acceptance_length)
    emitted = sum(step.num_emitted_tokens for step in steps)
    least = emitted / best
    gaps = [
        _gap("prefill", prefill, prefill_floor, MEASURED, "time to the first token; two operations a weight"),
        _gap(
            "acceptance",
            sum(times),
            sum(times) * min(1.0, least / len(steps)),
            FITTED,
            f"{len(steps)} steps, {least:.0f} with every position that survives"
            + ("" if trees is None or best == survival else f", in trees of {trees.longest.nodes} nodes"),
        ),
        *(
            _fitted_gaps(run, mine, machine, model)
            if profile is None
            else _traced_gaps(mine, profile, sum(times), machine, model)
        ),
    ]
    if arrived:
        gaps = [_as_arrived(gap, disagreement(run, arm)) for gap in gaps]
    closable = sum(gap.closable_s for gap in gaps) or 1.0
    ranked = sorted(
        (msgspec.structs.replace(gap, share=gap.closable_s / closable) for gap in gaps),
        key=lambda gap: (-gap.share, gap.component),
    )
    seconds = sum((one.end_ns or 0) / 1e9 for one in mine)
    floor = prefill_floor + least * step_floor_s(machine, model, max(1, round(best)))
    return CeilingModel(
        arm=arm,
        seconds=seconds,
        tokens=sum(len(one.token_ids) for one in mine),
        steps=len(steps),
        floor_s=floor,
        speedup=max(1.0, seconds / floor),
        acceptance_length=emitted / len(steps),
        acceptance_ceiling=best,
        gaps=tuple(ranked),
        machine=machine,
        model=model,
        survival_ceiling=survival,
        trees=points,
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
        return StepFit(float(medians[0]), 0.0)
    weights = np.sqrt([len(by_rows[int(n)]) for n in rows])
    slope, base = np.polyfit(rows, medians, 1, w=weights)
    if slope < 0.0:
        return StepFit(float(np.average(medians, weights=weights**2)), 0.0)
    return StepFit(max(0.0, float(base)), float(slope))


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


def _fitted_gaps(
    run: StoredRun, mine: Sequence[Response], machine: Machine, model: ModelSize
) -> Iterator[Gap]:
    """A step taken apart by what other arms' steps took."""
    kinds = {one.name: one.kind for one in run.job.plan.arms}
    free = {name for name, kind in kinds.items() if kind in FREE_DRAFTERS or kind == "ar"}
    times = [time for one in mine for time in step_seconds(one)]
    rows = [step.num_draft_tokens + 1 for one in mine for step in one.steps]
    fit = fit_steps([one for one in run.responses if one.arm in free and one.status == "ok"])
    apart = fit is not None
    fit = fit or fit_steps(mine) or StepFit(0.0, 0.0)
    growing = sum(fit.per_row_s * n for n in rows)
    reading = len(rows) * model.weight_bytes / machine.bytes_per_s
    whole = sum(step_floor_s(machine, model, n) for n in rows)
    if fit.per_row_s > 0.0:
        told = "base of a step; every weight read once"
        yield _gap("weights", fit.base_s * len(rows), reading, DERIVED, told)
        told = "growth of a step with its rows; two operations a weight and row, beyond the time of reading"
        yield _gap("rows", growing, whole - reading, FITTED, told)
    elif apart:
        told = "a step of other arms, which tell no growth with rows; every weight read once"
        yield _gap("weights", fit.base_s * len(rows), reading, DERIVED, told)
    else:
        told = "a step with its rows, which no arm tells apart; weights read, or rows computed"
        yield _gap("weights", fit.base_s * len(rows), whole, DERIVED, told)
    if apart:
        alone = "" if fit.per_row_s > 0.0 else ", and the growth with rows: no other arm tells it"
        drafting = max(0.0, sum(times) - fit.base_s * len(rows) - growing)
        told = f"step time above a step with free drafts{alone}"
        yield _gap("drafter", drafting, 0.0, FITTED if not alone else DERIVED, told)


def _traced_gaps(
    mine: Sequence[Response], profile: Mapping[str, float], seconds: float, machine: Machine, model: ModelSize
) -> Iterator[Gap]:
    """A step taken apart by the stages of a trace, each against its own floor."""
    rows = [step.num_draft_tokens + 1 for one in mine for step in one.steps]
    seen = sum(one.prompt_tokens + n for one in mine for n in _emitted_before(one))
    floors = {
        WEIGHTS: sum(step_floor_s(machine, model, n) for n in rows),
        ATTENTION: attention_floor_s(machine, model, seen),
        SAMPLING: sum(sampling_floor_s(machine, model, n) for n in rows),
        LAUNCH: len(rows) * machine.launch_s,
    }
    bases = {
        WEIGHTS: "every weight read once, two operations a weight and row",
        ATTENTION: "keys and values read once",
        SAMPLING: "logits read once",
        LAUNCH: "what it takes to start one operation, times the operations; one a step would do",
    }
    total = math.fsum(profile.values()) or 1.0
    for stage, share in sorted(profile.items()):
        told = f"share of a traced step; {bases.get(stage, 'none of it is needed')}"
        confidence = DERIVED if stage == LAUNCH else TRACED
        yield _gap(stage, seconds * share / total, floors.get(stage, 0.0), confidence, told)


def _emitted_before(response: Response) -> Iterator[int]:
    """Tokens in front of each step, without the prompt's."""
    emitted = response.prefill_tokens
    for step in response.steps:
        yield emitted
        emitted += step.num_emitted_tokens


def _as_arrived(gap: Gap, missed: float | None) -> Gap:
    """A gap whose steps are known by what arrived, held against the server's counters where there are any."""
    told, kept = "steps by what arrived from the server", ARRIVED
    if missed is not None:
        told += f", {missed:.0%} off its count of accepted tokens"
        kept *= 1.0 if missed <= AGREES else 0.5
    return msgspec.structs.replace(
        gap, confidence=round(gap.confidence * kept, 2), basis=f"{gap.basis} ({told})"
    )


def _gap(component: str, measured: float, floor: float, confidence: float, basis: str) -> Gap:
    return Gap(
        component=component,
        measured_s=measured,
        floor_s=floor,
        share=0.0,
        confidence=confidence,
        basis=basis if measured >= floor else f"{basis}; BELOW ITS FLOOR: measurement or peak is wrong",
    )
