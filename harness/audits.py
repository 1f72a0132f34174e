"""Checks of the run itself, from its responses: calibration arms, speculation on, conditions.

Pure. The calibration arms are instruments with a known reading: `null` drafts only wrong tokens,
`replay` only right ones. An engine that emits other tokens than `ar` under them, or counts other
acceptances, is broken in a way that ordinary drafters can hide for years.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from harness.plan import ArmSpec, Job
from harness.records import Response
from harness.results import Audit


def run_audits(
    job: Job,
    responses: Sequence[Response],
    self_exact: bool | None,
    facts: Sequence[Mapping[str, Any]] = (),
) -> tuple[Audit, ...]:
    """All audits that responses can answer.

    Args:
        job: plan and deployment.
        responses: all responses of the run.
        self_exact: whether the engine's logits were bitwise those of its `ar`. Where they were not,
            a near tie may flip an id, so the readings that demand equal ids give no verdict.
        facts: for each launch, what each backend told of itself. One that says `seeded` promises the
            same tokens for the same prompt and seed, in whatever batch; it is held to that.
    """
    seeded = {name for launch in facts for name, told in launch.items() if told.get("seeded") is True}
    by_arm = {arm.name: [r for r in responses if r.arm == arm.name] for arm in job.plan.arms}
    baseline = _first_ids(by_arm[job.plan.baseline.name])
    audits = [_completed(responses), _usage(responses)]
    strict = self_exact is True
    for arm in job.plan.arms:
        good = [response for response in by_arm[arm.name] if response.status == "ok"]
        if arm.name != job.plan.baseline.name and not _over_a_server(good):
            audits.append(speculation_on(arm, good))
        if good and (job.plan.sampling.greedy or arm.backend in seeded):
            audits.append(_repeatable(arm, good))
        if job.plan.sampling.greedy and good:
            if arm.kind == "null":
                audits += [null_reading(arm, good), _unless(strict, _same_ids(arm, good, baseline))]
            if arm.kind == "replay":
                audits += [
                    _unless(strict, replay_reading(arm, good)),
                    _unless(strict, _same_ids(arm, good, baseline)),
                ]
    return tuple(audits)


def probe_audits(facts: Sequence[Mapping[str, Any]]) -> tuple[Audit, ...]:
    """What was probed at the end of the last launch (`harness.measure.probes`).

    Args:
        facts: for each launch, what each backend told of itself, the probes among it.
    """
    last = facts[-1].values() if facts else ()
    return tuple(msgspec.convert(one, Audit) for told in last for one in told.get("probes") or ())


def invalid_reasons(
    job: Job, responses: Sequence[Response], facts: Sequence[Mapping[str, Any]], foreign: Mapping[str, float]
) -> tuple[str, ...]:
    """Why this run must not give a number; empty when it may.

    Args:
        job: plan and deployment.
        responses: all responses of the run.
        facts: for each launch, what each backend told of itself.
        foreign: share of the CPU used by other processes, by block name.
    """
    reasons = []
    failed = [response for response in responses if response.status == "failed"]
    if failed:
        first = failed[0]
        reasons.append(
            f"{len(failed)} of {len(responses)} requests failed; the first: {first.prompt_id} in arm "
            f"{first.arm}: {first.error}"
        )
    for arm in job.plan.arms:
        good = [response for response in responses if response.arm == arm.name and response.status == "ok"]
        if arm.name == job.plan.baseline.name or _over_a_server(good):
            continue  # a server tells its counts by other ways: see `harness.server_audits`
        if good and not speculation_on(arm, good).passed:
            reasons.append(f"arm {arm.name}: speculation was off: not one token was drafted")
    for launch in facts:
        for backend, told in launch.items():
            device = str(told.get("device", ""))
            if device.partition(":")[0] != job.deployment.device:
                reasons.append(
                    f"{backend} ran on {device or 'an unknown device'}, the plan says {job.deployment.device}"
                )
            gpu = told.get("gpu")
            if job.deployment.gpu is not None and gpu != job.deployment.gpu:
                reasons.append(f"{backend} ran on GPU {gpu!r}, the plan says {job.deployment.gpu!r}")
    limit = job.plan.measure.max_foreign_load
    busy = {block: share for block, share in foreign.items() if share > limit}
    if busy:
        worst = max(busy, key=lambda block: busy[block])
        reasons.append(
            f"other processes used {busy[worst]:.0%} of the CPU in {worst} (limit {limit:.0%}, "
            f"`measure.max_foreign_load`); {len(busy)} blocks are affected: stop them and run again"
        )
    return tuple(dict.fromkeys(reasons))


def redrawn(responses: Iterable[Response]) -> tuple[str, ...]:
    """Prompts on which an arm gave other ids than at first; above temperature 0 only the first are tested."""
    good = [response for response in responses if response.status == "ok"]
    first = _first_ids(good)
    return tuple(sorted({one.prompt_id for one in good if one.token_ids != first[one.prompt_id]}))


def speculation_on(arm: ArmSpec, responses: Sequence[Response]) -> Audit:
    """X4: drafts were made; requests without any draft are counted."""
    drafted = sum(step.num_draft_tokens for r in responses for step in r.steps)
    without = sum(1 for r in responses if not any(step.num_draft_tokens for step in r.steps))
    return Audit(
        name=f"speculation on: {arm.name}",
        passed=drafted > 0,
        detail=f"{drafted} tokens drafted; {without} of {len(responses)} responses had no draft",
    )


def null_reading(arm: ArmSpec, responses: Sequence[Response]) -> Audit:
    """X1: a drafter that is always wrong has every draft rejected, so acceptance length is 1."""
    accepted = sum(step.num_accepted_tokens for r in responses for step in r.steps)
    uneven = sum(1 for r in responses for step in r.steps if step.num_emitted_tokens != 1)
    return Audit(
        name=f"null reading: {arm.name}",
        passed=accepted == 0 and uneven == 0,
        detail=f"{accepted} wrong draft tokens accepted; {uneven} verify steps emitted other than one token",
    )


def replay_reading(arm: ArmSpec, responses: Sequence[Response]) -> Audit:
    """X2: a drafter that is always right has every draft accepted, but for the cut of the last step."""
    rejected = sum(
        1
        for r in responses
        for step in r.steps[:-1]
        if step.num_accepted_tokens != step.num_draft_tokens
        or step.num_emitted_tokens != step.num_draft_tokens + 1
    )
    steps = sum(max(len(r.steps) - 1, 0) for r in responses)
    return Audit(
        name=f"replay reading: {arm.name}",
        passed=rejected == 0,
        detail=f"{rejected} of {steps} verify steps before the last one did not accept the whole right draft",
    )


def _same_ids(arm: ArmSpec, responses: Sequence[Response], baseline: Mapping[str, tuple[int, ...]]) -> Audit:
    differing = sorted({r.prompt_id for r in responses if r.token_ids != baseline.get(r.prompt_id)})
    detail = "emitted ids equal those of the `ar` arm on every prompt"
    if differing:
        detail = f"emitted ids differ from the `ar` arm on {len(differing)} prompts, first {differing[0]}"
    return Audit(name=f"same ids as ar: {arm.name}", passed=not differing, detail=detail)


def _repeatable(arm: ArmSpec, responses: Sequence[Response]) -> Audit:
    differing = redrawn(responses)
    prompts = len(_first_ids(responses))
    detail = f"the same ids in every launch and block on all {prompts} prompts"
    if differing:
        detail = f"ids changed between launches or blocks on {len(differing)} prompts, first {differing[0]}"
    return Audit(name=f"repeatable: {arm.name}", passed=not differing, detail=detail)


def _completed(responses: Sequence[Response]) -> Audit:
    failed = sum(response.status == "failed" for response in responses)
    return Audit(
        name="requests completed",
        passed=failed == 0,
        detail=f"{len(responses) - failed} of {len(responses)} requests completed",
    )


def _usage(responses: Sequence[Response]) -> Audit:
    """R3: tokens counted by ids equal the sum over steps (held by the record), and are never zero."""
    empty = sum(1 for r in responses if r.status == "ok" and not r.token_ids)
    total = sum(len(r.token_ids) for r in responses)
    return Audit(
        name="tokens counted by ids",
        passed=empty == 0,
        detail=f"{total} tokens; prefill and verify steps add up in every response; {empty} were empty",
    )


def _unless(strict: bool, audit: Audit) -> Audit:
    """Where near ties may flip ids, a failed reading is no verdict."""
    if strict or audit.passed:
        return audit
    detail = f"{audit.detail}; no verdict, for this engine is not bitwise exact here and near ties may flip"
    return Audit(name=audit.name, passed=None, detail=detail)


def _over_a_server(responses: Sequence[Response]) -> bool:
    return any(response.chunks for response in responses)


def _first_ids(responses: Iterable[Response]) -> dict[str, tuple[int, ...]]:
    first: dict[str, tuple[int, ...]] = {}
    for response in responses:
        if response.status == "ok":
            first.setdefault(response.prompt_id, response.token_ids)
    return first
