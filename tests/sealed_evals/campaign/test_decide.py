from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.errors import UsageError
from harness.plan import SetSpec
from harness.records import DecodeStep, Response
from harness.results import ArmLosslessness, Audit, BlockSpan, DistributionTest, Report, StockVerdict
from sealed_evals.campaign.decide import check_launches, confirmation_job, decide, stock_job
from sealed_evals.campaign.records import Outcome
from tests.sealed_evals.campaign import build

FASTER = build.interval(1.02, 1.2)


def test_a_faster_exact_candidate_is_accepted() -> None:
    assert decide(build.report(FASTER), gain=0.0).line == "accept"
    assert decide(build.report(FASTER, losslessness=build.losslessness("near-tie")), gain=0.0).accepted


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "violated": ({"losslessness": build.losslessness("violated")}, "violated"),
    "not judged": ({"losslessness": build.losslessness("not-judged")}, "violated"),
    "no verdict": ({"losslessness": None}, "violated"),
    "a failed audit": ({"audits": (Audit(name="usage", passed=False, detail=""),)}, "audit"),
    "an invalid run": ({"status": "invalid", "reasons": ("noise",)}, "invalid"),
    "failed requests": (
        {
            "arms": (
                build.arm_result("stock", None),
                build.arm_result("candidate", FASTER, failed=1),
            )
        },
        "failed",
    ),
    "failed requests of stock": (
        {
            "arms": (
                build.arm_result("stock", None, failed=1),
                build.arm_result("candidate", FASTER),
            )
        },
        "invalid",
    ),
    "no candidate": ({"arms": (build.arm_result("stock", None),)}, "invalid"),
    "no requests": (
        {
            "arms": (
                build.arm_result("stock", None),
                build.arm_result("candidate", FASTER, requests=0),
            )
        },
        "invalid",
    ),
}


@pytest.mark.parametrize(("fields", "reason"), CASES.values(), ids=CASES)
def test_a_fast_candidate_is_rejected_for_anything_else(fields: dict[str, Any], reason: str) -> None:
    assert decide(build.report(FASTER, **fields), gain=0.0).line == f"reject: {reason}"


@pytest.mark.parametrize(("low", "high"), [(0.9, 0.95), (0.99, 1.3), (1.0, 1.3), (1.5, 1.5)])
def test_an_interval_that_does_not_lie_above_one_or_has_no_width_is_no_gain(low: float, high: float) -> None:
    assert decide(build.report(build.interval(low, high)), gain=0.0).reason == "not-faster"


def test_no_speedup_at_all_is_an_invalid_run() -> None:
    assert decide(build.report(None), gain=0.0).reason == "invalid"


def sampled(
    *, stock: bool | None = True, candidate: bool | None = True, verdict: StockVerdict = "not-judged"
) -> Report:
    """A run at temperature 1, by whether each arm passed the test of its distribution; None: untested."""

    def told(passed: bool | None) -> ArmLosslessness:
        test = DistributionTest(tokens=320, z=0.4, p_value=0.7, level=0.001, passed=passed is True)
        return ArmLosslessness(
            stock_verdict="violated" if passed is False else "not-judged",
            self_exact=None,
            responses=32,
            tokens=320,
            mismatches=0,
            near_ties=0,
            ar_identical=None,
            distribution_test=None if passed is None else test,
        )

    arms = (
        build.arm_result("stock", None, losslessness=told(stock)),
        build.arm_result("candidate", FASTER, losslessness=told(candidate)),
    )
    found = build.report(FASTER, arms=arms, losslessness=build.losslessness(verdict), division="distribution")
    drawn = msgspec.structs.replace(found.job.plan.sampling, temperature=1.0)
    plan = msgspec.structs.replace(found.job.plan, sampling=drawn)
    return msgspec.structs.replace(found, job=msgspec.structs.replace(found.job, plan=plan))


def drawn(arm: str, launch: int, *token_ids: int) -> Response:
    return Response(
        prompt_id="p0",
        arm=arm,
        launch=launch,
        block=0,
        order=0,
        status="ok",
        prompt_tokens=3,
        started_at=1.0,
        token_ids=token_ids,
        finish_reason="length",
        prefill_tokens=1,
        first_token_ns=1000,
        end_ns=3000,
        steps=(DecodeStep(num_draft_tokens=0, num_accepted_tokens=0, num_emitted_tokens=1, at_ns=2000),),
    )


SAME = (drawn("candidate", 0, 5, 6), drawn("candidate", 1, 5, 6))


def test_above_temperature_0_the_test_of_every_arms_distribution_is_the_verdict_on_its_tokens() -> None:
    assert decide(sampled(), 0.0, responses=SAME).line == "accept"
    assert decide(sampled(), 0.2, responses=SAME).reason == "not-faster"
    assert decide(sampled(candidate=False, verdict="violated"), 0.0, responses=SAME).reason == "violated"
    for untested in (sampled(candidate=None), sampled(stock=None), sampled(stock=False)):
        assert decide(untested, 0.0, responses=SAME).reason == "violated"
    # The arms passed, but an answer ended where stock's would not.
    assert decide(sampled(verdict="violated"), 0.0, responses=SAME).reason == "violated"


def test_above_temperature_0_all_timed_draws_of_a_prompt_are_the_tested_one() -> None:
    anew = (*SAME, drawn("candidate", 2, 5, 7))
    assert decide(sampled(), 0.0, responses=anew).reason == "violated"
    assert decide(sampled(), 0.0).reason == "violated"  # nobody knows
    of_stock = (*SAME, drawn("stock", 0, 5, 6), drawn("stock", 1, 5, 7))
    assert decide(sampled(), 0.0, responses=of_stock).accepted


def test_a_test_of_a_distribution_says_nothing_of_greedy_tokens() -> None:
    greedy = msgspec.structs.replace(sampled(), job=build.report(FASTER).job)
    assert decide(greedy, 0.0, responses=SAME).reason == "violated"


def test_the_gain_that_must_be_exceeded_counts() -> None:
    assert decide(build.report(FASTER), gain=0.019).accepted
    assert decide(build.report(FASTER), gain=0.03).reason == "not-faster"


def test_an_audit_that_could_not_be_run_rejects_nobody() -> None:
    unknown = (Audit(name="replay", passed=None, detail="not hosted"),)
    assert decide(build.report(FASTER, audits=unknown), gain=0.0).accepted


def timeline(*ratios: float) -> tuple[BlockSpan, ...]:
    return tuple(
        BlockSpan(launch=n, block=0, arm=arm, started_at=0.0, busy_seconds=seconds, tokens=1)
        for n, ratio in enumerate(ratios)
        for arm, seconds in (("stock", ratio), ("candidate", 1.0))
    )


def test_launches_must_pass_the_sign_flip_test_where_the_campaign_asks_for_it() -> None:
    gains = build.report(FASTER, timeline=timeline(*[1.2] * 6))
    assert decide(gains, 0.0, "sign-flip", 0.025).accepted
    assert decide(gains, 0.0, "sign-flip", 0.01).reason == "not-faster"  # six launches give 1/64
    one_lost = build.report(FASTER, timeline=timeline(*[1.2] * 5, 0.7))
    assert decide(one_lost, 0.0).accepted
    assert decide(one_lost, 0.0, "sign-flip", 0.025).reason == "not-faster"
    assert decide(build.report(FASTER), 0.0, "sign-flip", 0.025).reason == "not-faster"  # no launch at all


def test_a_campaign_whose_launches_could_accept_nothing_is_refused() -> None:
    job = stock_job(build.make_job(), level=0.025, rows=8)
    check_launches(job, "interval", 0.025)
    with pytest.raises(UsageError, match=r"`measure.launches` = \d+ can pass no .* takes 6 launches"):
        check_launches(job, "sign-flip", 0.025)


def test_the_job_has_the_two_arms_and_the_levels_confidence() -> None:
    campaign = stock_job(build.make_job(), level=0.01, rows=8)
    shard = SetSpec(name="unseen-000", count=8, path="shard.jsonl", field="turns")

    job = confirmation_job(campaign, build.CANDIDATE, shard)

    assert [(arm.name, arm.kind) for arm in job.plan.arms] == [("stock", "stock"), ("candidate", "candidate")]
    assert job.plan.baseline.name == "stock"  # not the plan's autoregressive arm
    assert job.plan.stats.confidence == 0.99
    assert job.plan.sets == (shard,)


def test_an_outcome_is_a_verdict_or_a_reason_never_both() -> None:
    with pytest.raises(ValueError, match="a rejection has a reason"):
        Outcome(accepted=False)
    with pytest.raises(ValueError, match="an acceptance has none"):
        Outcome(accepted=True, reason="failed")
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"accepted":false,"reason":"prompt 7 is too slow"}', type=Outcome)
