"""The calibration readings and the reasons for an invalid run."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from harness.audits import (
    invalid_reasons,
    null_reading,
    redrawn,
    replay_reading,
    run_audits,
    speculation_on,
)
from harness.measure.launch import requests_for, run_slots
from harness.measure.stopwatch import Place, run_batch
from harness.plan import ArmSpec, Job
from harness.records import DecodeStep, Response
from tests.harness.fakes import BACKEND, FakeClock, ScriptedSession, make_job, make_prompts

NULL = ArmSpec(name="null", kind="null", backend=BACKEND)
REPLAY = ArmSpec(name="replay", kind="replay", backend=BACKEND)
FACTS: list[dict[str, Any]] = [{BACKEND: {"device": "cpu"}}]


def responses_of(job: Job) -> list[Response]:
    session = ScriptedSession(job.deployment, job.plan.arms)
    sessions = {arm.name: session for arm in job.plan.arms}
    assert requests_for(job, make_prompts())
    runs = run_slots(job, sessions, make_prompts(), 0, frozenset(), FakeClock(), lambda slot: None)
    return [response for _, block in runs for response in block]


def with_steps(*steps: tuple[int, int, int]) -> list[Response]:
    job = make_job(max_tokens=1 + sum(step[2] for step in steps))
    session = ScriptedSession(job.deployment, job.plan.arms)
    (request, *_) = requests_for(job, make_prompts(1))
    (response,) = run_batch(
        session, [request], ["own/p0"], Place(arm="ar", launch=0, block=0, order=0), FakeClock()
    )
    made = tuple(
        DecodeStep(num_draft_tokens=d, num_accepted_tokens=a, num_emitted_tokens=e, at_ns=n)
        for n, (d, a, e) in enumerate(steps)
    )
    return [msgspec.structs.replace(response, steps=made)]


@pytest.mark.parametrize(
    ("steps", "passed"),
    [([(7, 0, 1), (7, 0, 1)], True), ([(7, 1, 2)], False), ([(7, 0, 1), (3, 1, 1)], False)],
)
def test_null_reads_one_token_a_step_and_nothing_accepted(
    steps: list[tuple[int, int, int]], passed: bool
) -> None:
    assert null_reading(NULL, with_steps(*steps)).passed is passed


@pytest.mark.parametrize(
    ("steps", "passed"),
    [
        ([(7, 7, 8), (7, 3, 3)], True),
        ([(7, 7, 8), (7, 3, 4), (7, 7, 8)], False),
        ([(7, 7, 7), (7, 7, 8)], False),
    ],
    ids=["only-last-is-cut", "rejected-in-the-middle", "bonus-lost"],
)
def test_replay_reads_whole_drafts_but_for_the_last_step(
    steps: list[tuple[int, int, int]], passed: bool
) -> None:
    assert replay_reading(REPLAY, with_steps(*steps)).passed is passed


def test_ids_that_differ_from_ar_fail_the_replay_arm_only_where_the_engine_is_exact() -> None:
    arms = (ArmSpec(name="ar", kind="ar", backend=BACKEND), NULL, REPLAY)
    job = make_job(arms)
    responses = [
        msgspec.structs.replace(r, token_ids=(99, *r.token_ids[1:])) if r.arm == "replay" else r
        for r in responses_of(job)
    ]

    def reading(self_exact: bool | None) -> bool | None:
        audits = {audit.name: audit.passed for audit in run_audits(job, responses, self_exact)}
        assert audits["same ids as ar: null"] is True
        return audits["same ids as ar: replay"]

    assert reading(True) is False
    assert reading(False) is None


def test_an_arm_that_changes_its_mind_between_blocks_is_not_repeatable() -> None:
    job = make_job()
    responses = responses_of(job)
    changed = [
        msgspec.structs.replace(r, token_ids=(99, *r.token_ids[1:]))
        if r.block == 1 and r.arm == "stock"
        else r
        for r in responses
    ]
    clean = {audit.name: audit.passed for audit in run_audits(job, responses, True)}
    dirty = {audit.name: audit.passed for audit in run_audits(job, changed, True)}
    assert clean["repeatable: stock"] is True
    assert dirty["repeatable: stock"] is False
    assert dirty["repeatable: ar"] is True


def test_prompts_that_were_answered_otherwise_when_asked_again_are_named() -> None:
    good = [r for r in responses_of(make_job()) if r.arm == "stock"]
    first = good[0].prompt_id
    assert redrawn(good) == ()
    changed = [
        msgspec.structs.replace(r, token_ids=(99, *r.token_ids[1:]))
        if r.block == 1 and r.prompt_id == first
        else r
        for r in good
    ]
    assert redrawn(changed) == (first,)
    assert redrawn([one for one in changed if one.block == 1]) == ()  # nothing to hold it against


def test_a_clean_run_has_no_reason_to_be_invalid() -> None:
    job = make_job()
    assert invalid_reasons(job, responses_of(job), FACTS, {"launch 0 block 0": 0.01}) == ()


@pytest.mark.parametrize(
    ("params", "facts", "foreign", "told"),
    [
        ({"drafts": 2, "fail_on": "own/p1"}, FACTS, {}, "2 of 12 requests failed.*refused on purpose"),
        ({"drafts": 0}, FACTS, {}, "arm stock: speculation was off"),
        ({"drafts": 2}, [{BACKEND: {"device": "cuda:0"}}], {}, "ran on cuda:0, the plan says cpu"),
        ({"drafts": 2}, FACTS, {"launch 0 block 1": 0.6}, "60% of the CPU in launch 0 block 1"),
    ],
    ids=["failed", "speculation-off", "wrong-device", "foreign-load"],
)
def test_each_reason_for_invalid_is_named(
    params: dict[str, Any], facts: list[dict[str, Any]], foreign: dict[str, float], told: str
) -> None:
    arms = (
        ArmSpec(name="ar", kind="ar", backend=BACKEND),
        ArmSpec(name="stock", kind="stock", backend=BACKEND, params=params),
    )
    job = make_job(arms)
    (reason,) = invalid_reasons(job, responses_of(job), facts, foreign)
    assert re.search(told, reason)


def test_a_wrong_gpu_is_a_reason() -> None:
    job = make_job()
    named = msgspec.structs.replace(
        job, deployment=msgspec.structs.replace(job.deployment, gpu="NVIDIA H100")
    )
    (reason,) = invalid_reasons(named, responses_of(job), FACTS, {})
    assert "'NVIDIA H100'" in reason


def test_speculation_on_counts_responses_without_a_draft() -> None:
    audit = speculation_on(REPLAY, with_steps((0, 0, 1)) + with_steps((3, 1, 2)))
    assert audit.passed
    assert "1 of 2 responses had no draft" in audit.detail
