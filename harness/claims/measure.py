"""The numbers a claim is held against, derived from stored responses on the claim's sets alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from harness.errors import UndefinedMetric
from harness.records import PromptLine, Response
from harness.results import Interval, Report
from harness.stats.speedup import compare_arms

RESAMPLES = 4000


class Evidence(NamedTuple):
    """A stored run, and the arm that is looked at."""

    report: Report
    responses: Sequence[Response]
    prompts: Sequence[PromptLine]
    arm: str
    gpu: str | None = None  # of servers elsewhere, on their owner's word


def measured_speedup(
    evidence: Evidence, sets: Sequence[str], over: Literal["ar", "stock"]
) -> tuple[Interval | None, str]:
    """Total-time ratio on the prompts of these sets, and the division it is, in words.

    Args:
        evidence: the run.
        sets: whose prompts count.
        over: "ar" takes the run's baseline, "stock" its stock arm.
    """
    plan = evidence.report.job.plan
    baseline = plan.baseline if over == "ar" else next(arm for arm in plan.arms if arm.kind == "stock")
    base, own = _of(evidence, baseline.name, sets), _of(evidence, evidence.arm, sets)
    categories = {line.prompt.prompt_id: line.prompt.category for line in evidence.prompts}
    batched = plan.measure.batch > 1
    found = compare_arms(base, own, categories, plan.stats, batched=batched).headline
    return found, f"{_spent(base, batched=batched)} / {_spent(own, batched=batched)}"


def measured_acceptance(evidence: Evidence, sets: Sequence[str]) -> tuple[Interval, str]:
    """Emitted tokens over verify steps on these sets, resampled by prompt, and the division in words.

    Only the first response to a prompt counts: in greedy decoding the others are its repetition.

    Raises:
        UndefinedMetric: the arm tells no verify step, as servers do not.
    """
    first: dict[str, Response] = {}
    for response in sorted(_of(evidence, evidence.arm, sets), key=lambda r: (r.launch, r.block)):
        if response.status == "ok" and response.steps:
            first.setdefault(response.prompt_id, response)
    if not first:
        raise UndefinedMetric(
            f"arm {evidence.arm} tells no verify step, so its acceptance length cannot be counted here"
        )
    emitted = np.array([sum(step.num_emitted_tokens for step in r.steps) for r in first.values()])
    steps = np.array([len(response.steps) for response in first.values()])
    spec = evidence.report.job.plan.stats
    drawn = np.random.default_rng(spec.seed).integers(len(first), size=(RESAMPLES, len(first)))
    lengths = emitted[drawn].sum(axis=1) / steps[drawn].sum(axis=1)
    tail = (1.0 - spec.confidence) / 2.0
    low, high = np.quantile(lengths, [tail, 1.0 - tail])
    point = float(emitted.sum() / steps.sum())
    found = Interval(
        point=point,
        low=float(min(low, point)),
        high=float(max(high, point)),
        confidence=spec.confidence,
        method="percentile bootstrap over prompts",
        launches=1,
        blocks=1,
        prompts=len(first),
        resamples=RESAMPLES,
    )
    return found, f"{int(emitted.sum())} tokens / {int(steps.sum())} verify steps"


def _of(evidence: Evidence, arm: str, sets: Sequence[str]) -> list[Response]:
    wanted = {line.prompt.prompt_id for line in evidence.prompts if line.prompt.set_name in sets}
    return [r for r in evidence.responses if r.arm == arm and r.prompt_id in wanted]


def _spent(responses: Sequence[Response], *, batched: bool) -> str:
    """Summed time and tokens of what succeeded, in words; a batch's time passes once."""
    good = [response for response in responses if response.end_ns is not None]
    ends: dict[object, int] = {}
    for index, response in enumerate(good):
        key = (response.launch, response.order) if batched else index
        ends[key] = max(ends.get(key, 0), response.sent_ns + (response.end_ns or 0))
    tokens = sum(len(response.token_ids) for response in good)
    name = good[0].arm if good else "nothing"
    return f"{name} {sum(ends.values()) / 1e9:.3f} s for {tokens} tokens"
