"""Above temperature 0 the test of the distribution is the verdict on an arm's tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_loop.campaign import Rules
from agent_loop.controller.judging import judge
from agent_loop.records import Verdict
from harness.oracle.stored import StoredRun
from harness.plan import ArmSpec
from harness.results import DistributionTest, StockVerdict
from tests.agent_loop.simulated import BACKEND, Host, make_loop

PASSED = DistributionTest(tokens=480, z=0.4, p_value=0.69, level=0.001, passed=True)
FAILED = DistributionTest(tokens=480, z=9.0, p_value=1e-19, level=0.001, passed=False)


def sampled(verdict: StockVerdict, test: DistributionTest | None, temperature: float = 1.0) -> StoredRun:
    """A run whose candidate is a fifth faster than stock, and judged so."""
    loop = make_loop()
    fast = ArmSpec(name="c0", kind="candidate", backend=BACKEND, params={"width": 3})
    plan = msgspec.structs.replace(
        loop.job.plan,
        arms=(*loop.job.plan.arms, fast),
        sampling=msgspec.structs.replace(loop.job.plan.sampling, temperature=temperature),
    )
    job = msgspec.structs.replace(loop.job, plan=plan)
    run = Host(Path("unused"), lambda params: 1.2 if params["width"] == 3 else 1.0).run(job, "x")
    arms = []
    for arm in run.report.arms:
        assert arm.losslessness is not None
        told: dict[str, Any] = {"stock_verdict": "not-judged", "distribution_test": PASSED}
        if arm.name == "c0":
            told = {"stock_verdict": verdict, "distribution_test": test}
        arms.append(
            msgspec.structs.replace(arm, losslessness=msgspec.structs.replace(arm.losslessness, **told))
        )
    return run._replace(report=msgspec.structs.replace(run.report, arms=tuple(arms)))


def judged(run: StoredRun) -> Verdict:
    return judge(run, "c0", "screen", Rules(), lambda _: 0.0)


def test_an_honest_draw_is_judged_by_its_time() -> None:
    assert judged(sampled("not-judged", PASSED)).outcome == "PASSED"


def test_another_distribution_is_lossy_and_its_test_is_told() -> None:
    found = judged(sampled("violated", FAILED))
    assert (found.stage, found.outcome) == ("lossless", "LOSSY_DISTRIBUTION")
    assert "z = 9, p = 1e-19, 480 tokens" in found.detail


def test_one_that_draws_anew_when_it_is_asked_again_is_not_judged_by_its_first_draw() -> None:
    run = sampled("not-judged", PASSED)
    again = [
        msgspec.structs.replace(one, launch=1, token_ids=(99, *one.token_ids[1:]))
        for one in run.responses
        if one.arm == "c0"
    ]
    found = judged(run._replace(responses=(*run.responses, *again)))
    assert found.outcome == "INVALID"
    assert "drew other tokens when it was asked again (4 prompts" in found.detail
    of_stock = [msgspec.structs.replace(one, arm="stock") for one in again]
    assert judged(run._replace(responses=(*run.responses, *of_stock))).outcome == "PASSED"  # honest by decree


def test_a_wrong_end_of_the_right_distribution_is_called_that() -> None:
    found = judged(sampled("violated", PASSED))
    assert (found.outcome, found.detail) == ("LOSSY", "the output ends where stock's would not")


@pytest.mark.parametrize(
    ("temperature", "said"),
    [
        (1.0, "too few or too certain to test their distribution; give the stage more prompts"),
        (0.0, "no verdict"),
    ],
    ids=["sampled", "greedy"],
)
def test_what_nobody_could_judge_is_invalid_and_says_what_would_mend_it(
    temperature: float, said: str
) -> None:
    found = judged(sampled("not-judged", None, temperature))
    assert found.outcome == "INVALID"
    assert said in found.detail
