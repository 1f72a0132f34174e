"""The decision of a confirmation, from the report of the run on an unseen shard. Pure.

Accepted is a candidate whose every token stock explains, whose run is valid, and whose speedup
over stock lies above 1 + gain with its whole interval. The interval has the confidence 1 - level,
so that its lower side alone errs with level / 2: intervals from two or three launches err up to
twice as often as they say where launches differ more than prompts do, and the level shall hold there.

Above temperature 0 no token has a verdict of its own: every arm must pass the test of its distribution,
and the candidate must give the same draw whenever it is asked again, since the test sees the first alone
and all of them are timed.

A campaign may ask for the exact sign-flip test over launches besides: it holds the level whatever the
noise between launches looks like, and needs log2(1 / level) launches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from harness.audits import redrawn
from harness.errors import UsageError
from harness.plan import ArmSpec, Job, SetSpec
from harness.records import Response
from harness.results import LOSSLESS, Report
from harness.stats.equivalence import has_width
from harness.stats.sign_flip import launch_log_ratios, least_launches, sign_flip_p
from sealed_evals.campaign.records import Candidate, Outcome, Reason, Test

STOCK = "stock"
CANDIDATE = "candidate"


def stock_job(job: Job, level: float, rows: int) -> Job:
    """The job of a campaign: its stock arm alone on a shard, at the confidence that the level asks for.

    The plan's own sets are left out: where they lie is nobody's business who reads campaign.json.

    Raises:
        UsageError: the plan has no stock arm, its division knows no lossless speedup, or the level
            is none.
    """
    if not 0.0 < level < 0.5:
        raise UsageError(f"--level must lie between 0 and 0.5, got {level}")
    division = job.plan.effective_division
    if division not in ("exact-greedy", "distribution"):
        raise UsageError(f"plan {job.plan.name}: nothing in the division {division!r} can be confirmed")
    stock = next((arm for arm in job.plan.arms if arm.kind == STOCK), None)
    if stock is None:
        raise UsageError(f"plan {job.plan.name}: has no arm of kind 'stock' to confirm candidates against")
    plan = msgspec.structs.replace(
        job.plan,
        sets=(SetSpec(name="unseen", count=rows),),
        arms=(msgspec.structs.replace(stock, name=STOCK),),
        stats=msgspec.structs.replace(job.plan.stats, confidence=1.0 - level),
    )
    return msgspec.structs.replace(job, plan=plan)


def confirmation_job(job: Job, candidate: Candidate, shard: SetSpec) -> Job:
    """The campaign's job with the candidate's arm, on the rows of a shard."""
    arm = ArmSpec(name=CANDIDATE, kind="candidate", backend=candidate.backend, params=candidate.params)
    plan = msgspec.structs.replace(job.plan, sets=(shard,), arms=(*job.plan.arms, arm))
    return msgspec.structs.replace(job, plan=plan)


def check_launches(job: Job, test: Test, level: float) -> None:
    """Hold that the plan has launches enough for the test at this level.

    Raises:
        UsageError: it has not, so that nothing could ever be accepted.
    """
    needed = least_launches(level) if test == "sign-flip" else 1
    if job.plan.measure.launches < needed:
        raise UsageError(
            f"plan {job.plan.name}: `measure.launches` = {job.plan.measure.launches} can pass no sign-flip "
            f"test at level {level:g}; it takes {needed} launches"
        )


def decide(
    report: Report,
    gain: float,
    test: Test = "interval",
    level: float = 0.05,
    *,
    responses: Iterable[Response] = (),
) -> Outcome:
    """Accept or reject, with the class of the first reason that holds.

    Args:
        report: of a run of `confirmation_job`.
        gain: the speedup minus one that the interval must lie above.
        test: what else an accepted candidate must pass.
        level: of that test.
        responses: of the run; above temperature 0 nothing is accepted without the candidate's.
    """
    arms = {arm.name: arm for arm in report.arms}
    candidate, stock = arms.get(CANDIDATE), arms.get(STOCK)
    if candidate is None or stock is None or not candidate.requests:
        return rejected("invalid")
    reason: Reason | None = None
    if candidate.failed:
        reason = "failed"
    elif not _tokens_are_stocks(report, responses):
        reason = "violated"
    elif any(audit.passed is False for audit in report.audits):
        reason = "audit"
    elif report.status != "valid" or stock.failed or candidate.speedup is None:
        reason = "invalid"
    elif (
        not has_width(candidate.speedup)
        or candidate.speedup.low <= 1.0 + gain
        or (test == "sign-flip" and not _launches_gain(report, gain, level))
    ):
        reason = "not-faster"
    return Outcome(accepted=reason is None, reason=reason)


def _tokens_are_stocks(report: Report, responses: Iterable[Response]) -> bool:
    """Whether the oracle explains every token that was timed."""
    verdict = None if report.losslessness is None else report.losslessness.stock_verdict
    if report.job.plan.sampling.greedy:
        return verdict in LOSSLESS
    mine = [one for one in responses if one.arm == CANDIDATE]
    tests = [None if arm.losslessness is None else arm.losslessness.distribution_test for arm in report.arms]
    tested = all(test is not None and test.passed for test in tests)
    return verdict == "not-judged" and tested and bool(mine) and not redrawn(mine)


def _launches_gain(report: Report, gain: float, level: float) -> bool:
    ratios = launch_log_ratios(report.timeline, STOCK, CANDIDATE)
    return bool(ratios) and sign_flip_p(ratios, math.log1p(gain)) <= level


def rejected(reason: Reason) -> Outcome:
    """A rejection."""
    return Outcome(accepted=False, reason=reason)
