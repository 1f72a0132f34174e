"""Puts what was measured, judged and estimated into one report. No file is written here."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.acceptance_audits import acceptance_audits
from harness.audits import invalid_reasons, probe_audits, run_audits
from harness.drafter_detectors import detection_warnings, detections
from harness.environment import collect_environment, collect_harness
from harness.models import ModelFolder
from harness.oracle.judge import Judged
from harness.plan import Job
from harness.records import PromptLine, PromptSet, Response
from harness.results import (
    SCHEMA_VERSION,
    ArmResult,
    BlockSpan,
    PlanRef,
    Report,
    SetSummary,
)
from harness.server_audits import server_audits, server_warnings
from harness.stats.summary import ArmSpeed, summarise_arms


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a report rests on."""

    job: Job
    sets: tuple[PromptSet, ...]
    prompts: tuple[PromptLine, ...]
    responses: Sequence[Response]
    facts: Sequence[Mapping[str, Any]]  # per launch: what each backend told of itself
    judged: Judged
    foreign: Mapping[str, float]  # foreign CPU share by "launch L block B"
    telemetry: Mapping[str, Any]
    model: ModelFolder
    tokenizer: Mapping[str, Any]
    files: Mapping[str, str]
    command: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def assemble(evidence: Evidence, now: datetime.datetime) -> Report:
    """The report of a run; a run with a reason to be invalid carries no speedup."""
    job, responses = evidence.job, evidence.responses
    reasons = invalid_reasons(job, responses, evidence.facts, evidence.foreign)
    speeds = summarise_arms(responses, [line.prompt for line in evidence.prompts], job.plan)
    judged = evidence.judged
    detected = detections(responses, _told(evidence))
    arms = tuple(
        _arm_result(job, arm.name, speeds.arms[arm.name], evidence, valid=not reasons)
        for arm in job.plan.arms
    )
    return Report(
        schema_version=SCHEMA_VERSION,
        name=job.plan.name,
        label=job.plan.label,
        status="invalid" if reasons else "valid",
        reasons=reasons,
        division=job.plan.effective_division,
        plan=PlanRef(name=job.plan.name, hash=job.hash),
        job=job,
        command=evidence.command,
        created_at=now.isoformat(timespec="seconds"),
        harness=collect_harness(),
        environment=collect_environment(),
        models={"target": _model_facts(evidence), "tokenizer": dict(evidence.tokenizer)},
        sets=tuple(_summary(drawn) for drawn in evidence.sets),
        backends=_told(evidence),
        arms=arms,
        losslessness=judged.overall,
        audits=(
            *run_audits(job, responses, judged.overall.self_exact, evidence.facts),
            *server_audits(job, responses, evidence.facts),
            *acceptance_audits(job, responses, evidence.facts, evidence.model.eos_token_ids),
            *probe_audits(evidence.facts),
        ),
        timeline=_timeline(job, responses),
        telemetry=dict(evidence.telemetry),
        warnings=(
            *_warnings(evidence, () if reasons else speeds.warnings),
            *detection_warnings(detected),
        ),
        files=dict(evidence.files),
        detections=detected,
    )


def _arm_result(job: Job, name: str, speed: ArmSpeed, evidence: Evidence, *, valid: bool) -> ArmResult:
    arm = job.plan.arm(name)
    return ArmResult(
        name=name,
        kind=arm.kind,
        backend=arm.backend,
        params=arm.params,
        requests=speed.requests,
        failed=speed.failed,
        tokens=speed.tokens,
        tokens_per_second=speed.tokens_per_second if valid else None,
        speedup=speed.speedup if valid else None,
        speedup_geomean=speed.speedup_geomean if valid else None,
        speedup_decode=speed.speedup_decode if valid else None,
        by_category=speed.by_category if valid else (),
        slower_share=speed.slower_share if valid else None,
        verdict=speed.verdict if valid else None,
        acceptance_length=None if speed.acceptance is None else speed.acceptance.length,
        acceptance=speed.acceptance,
        latency=speed.latency if valid else None,
        load=speed.load if valid else None,
        acceptance_by_set=speed.acceptance_by_set,
        speedup_by_set=speed.speedup_by_set if valid else None,
        losslessness=evidence.judged.arms.get(name),
    )


def _model_facts(evidence: Evidence) -> dict[str, Any]:
    model = evidence.model
    return {
        "source": model.source,
        "weights_sha256": model.sha256,
        "eos_token_ids": list(model.eos_token_ids),
        "context_length": model.context_length,
        "vocab_size": model.vocab_size,
        "dtype": evidence.job.deployment.target.dtype,
    }


def _told(evidence: Evidence) -> dict[str, Any]:
    """What the backends told in the last launch, by backend name."""
    told: dict[str, Any] = {}
    for launch in evidence.facts:
        told |= launch
    return told


def _summary(drawn: PromptSet) -> SetSummary:
    return SetSummary(
        name=drawn.name,
        split=drawn.split,
        source=drawn.source,
        licence=drawn.licence,
        rows=drawn.rows,
        drawn=len(drawn.prompts),
        raw_sha256=drawn.raw_sha256,
        prompts_sha256=drawn.prompts_sha256,
        merkle_root=drawn.merkle_root,
    )


def _timeline(job: Job, responses: Sequence[Response]) -> tuple[BlockSpan, ...]:
    spans = []
    for launch in range(job.plan.measure.launches):
        for block in range(job.plan.measure.blocks):
            for arm in job.plan.arms:
                mine = [
                    r
                    for r in responses
                    if (r.launch, r.block, r.arm, r.status) == (launch, block, arm.name, "ok")
                ]
                if not mine:
                    continue
                busy: dict[int, int] = {}
                for response in mine:  # requests of a batch share their time: the longest counts, once
                    busy[response.order] = max(busy.get(response.order, 0), response.end_ns or 0)
                spans.append(
                    BlockSpan(
                        launch=launch,
                        block=block,
                        arm=arm.name,
                        started_at=min(r.started_at for r in mine),
                        busy_seconds=sum(busy.values()) / 1e9,
                        tokens=sum(len(r.token_ids) for r in mine),
                    )
                )
    return tuple(spans)


def _warnings(evidence: Evidence, of_speeds: Sequence[str]) -> tuple[str, ...]:
    """Each once; what speaks of speeds is left out of an invalid run."""
    told = (*evidence.warnings, *server_warnings(evidence.responses), *_plan_warnings(evidence.job))
    return tuple(dict.fromkeys((*told, *of_speeds)))


def _plan_warnings(job: Job) -> list[str]:
    plan, warnings = job.plan, []
    if plan.label == "smoke":
        prompts = sum(spec.count for spec in plan.sets)
        warnings.append(
            f"smoke run: {prompts} prompts of at most {plan.sampling.max_tokens} tokens, "
            f"{plan.measure.launches} launches, {plan.measure.blocks} blocks; it stands behind no claim "
            "(a claim needs at least 3 launches, 5 blocks and 200 requests an arm)"
        )
    return warnings
