from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.errors import UsageError
from harness.plan import SetSpec
from harness.results import Audit, BlockSpan
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
