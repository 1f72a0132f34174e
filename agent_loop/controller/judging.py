"""From a run on public rows to the verdict on each candidate. Pure.

The order of the questions is the point: whether everything was answered, whether every token is
stock's, whether the time is one that physics allows, whether a guardrail is broken, and only then
whether anything was gained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from agent_loop.campaign import Rules
from agent_loop.cost_model.floors import SLACK
from agent_loop.records import Effect, Outcome, Stage, Verdict
from harness.audits import redrawn
from harness.oracle.stored import StoredRun
from harness.records import Response
from harness.results import ArmResult, Interval, Report
from harness.stats.equivalence import has_width
from harness.stats.sign_flip import launch_log_ratios, sign_flip_p
from harness.stats.speedup import compare_arms

Floor = Callable[[Response], float]  # seconds that this response takes at least, on this machine
INSTANT = 16.0  # times as fast as stock: more than any mechanism known here gives
INERT = "speculation was off"
CLOCK_MS = 1.0  # by which a latency may grow unseen, whatever the margin: short ones are mostly noise


def judge(run: StoredRun, arm: str, stage: Stage, rules: Rules, floor: Floor) -> Verdict:
    """The verdict of "screen" (lossless and not slower) or "measure" (surely faster) on one arm.

    Args:
        run: finished, with an arm "stock".
        arm: the candidate's.
        stage: which one, for the record.
        rules: margins of the guardrails.
        floor: of the cost model.
    """
    report = run.report
    found = next(one for one in report.arms if one.name == arm)
    stock = next(one for one in report.arms if one.name == "stock")
    outcome, detail = _outcome(run, found, stock, stage, rules, floor)
    told = found.losslessness
    return Verdict(
        candidate_id="",  # the caller's to fill: an arm does not know whose it is
        stage="lossless" if outcome in ("LOSSY", "LOSSY_DISTRIBUTION", "INCOMPLETE") else stage,
        outcome=outcome,
        detail=detail,
        effect=effect(report, found),
        acceptance_length=found.acceptance_length,
        tokens=0 if told is None else told.tokens,
        mismatches=0 if told is None else told.mismatches,
        near_ties=0 if told is None else told.near_ties,
    )


def effect(report: Report, arm: ArmResult) -> Effect | None:
    """Speedup over stock with its interval; None where the run gives none."""
    return None if arm.speedup is None else _effect(report, "stock", arm.name, arm.speedup)


def effect_over(run: StoredRun, reference: str, arm: str) -> Effect | None:
    """Speedup over another arm that ran in the same launches; None where there are no pairs."""
    mine, theirs = ([one for one in run.responses if one.arm == name] for name in (arm, reference))
    one_kind = dict.fromkeys((one.prompt_id for one in mine), "all")
    plan = run.job.plan
    found = compare_arms(theirs, mine, one_kind, plan.stats, batched=plan.measure.batch > 1).headline
    return None if found is None else _effect(run.report, reference, arm, found)


def _effect(report: Report, reference: str, arm: str, speedup: Interval) -> Effect:
    ratios = launch_log_ratios(report.timeline, reference, arm)
    return Effect(
        point=speedup.point,
        low=speedup.low,
        high=speedup.high,
        confidence=speedup.confidence,
        blocks=speedup.launches,
        p_value=sign_flip_p(ratios) if ratios else None,
    )


def culprits(report: Report) -> dict[str, tuple[Outcome, str]]:
    """Arms for whose sake alone a whole run is invalid, with the verdict on each.

    Such an arm must not take the others with it: they are run again without it.
    """
    found: dict[str, tuple[Outcome, str]] = {}
    for arm in report.arms:
        if arm.kind == "stock":
            continue
        if arm.failed:
            found[arm.name] = ("INCOMPLETE", f"{arm.failed} of {arm.requests} requests failed")
        elif any(reason.startswith(f"arm {arm.name}:") and INERT in reason for reason in report.reasons):
            found[arm.name] = ("NO_GAIN", "inert: not one token was drafted")
    return found


def below_floor(
    responses: Sequence[Response], stock: Sequence[Response], floor: Floor
) -> tuple[Response, float] | None:
    """The first response that came faster than physics allows, and the least it could have taken.

    Stock is honest: where it runs faster than the measured peaks themselves, they were measured on a busy
    machine and convict nobody; then only what is `INSTANT` times as fast as stock's fastest, floor for
    floor, is held for impossible.
    """
    near = [one.end_ns / 1e9 / floor(one) for one in stock if one.end_ns is not None and floor(one) > 0.0]
    least = min(near, default=1.0 / SLACK)
    scale = 1.0 if least >= 1.0 / SLACK else least / INSTANT
    for one in responses:
        if one.end_ns is not None and one.end_ns / 1e9 < scale * floor(one):
            return one, scale * floor(one)
    return None


def _outcome(  # noqa: PLR0911 - one question a line, in order
    run: StoredRun, arm: ArmResult, stock: ArmResult, stage: Stage, rules: Rules, floor: Floor
) -> tuple[Outcome, str]:
    report = run.report
    if arm.failed:
        return "INCOMPLETE", f"{arm.failed} of {arm.requests} requests failed"
    if arm.losslessness is not None and arm.losslessness.stock_verdict == "violated":
        return lossy(run, arm)
    unknown = _unjudged(run, arm)
    if unknown is not None:
        return "INVALID", unknown
    bad = next((a for a in report.audits if a.passed is False and a.name.endswith(f": {arm.name}")), None)
    if bad is not None and bad.name.startswith("speculation on"):
        return "NO_GAIN", f"inert: {bad.detail}"
    if bad is not None:
        return "CHEAT", f"audit failed: {bad.name.removesuffix(f': {arm.name}')}: {bad.detail}"
    mine, theirs = ([r for r in run.responses if r.arm == name] for name in (arm.name, "stock"))
    quick = below_floor(mine, theirs, floor)
    if quick is not None:
        took = (quick[0].end_ns or 0) / 1e6
        return "BELOW_CEILING", f"answered in {took:.1f} ms what takes at least {quick[1] * 1e3:.1f} ms here"
    if report.status != "valid" or arm.speedup is None:
        return "INVALID", "; ".join(report.reasons) or "no speedup could be computed"
    worse = broken_guardrail(arm, stock, rules)
    if worse is not None:
        return "REGRESSION", worse
    return _gain(arm, stage, rules)


def lossy(run: StoredRun, arm: ArmResult) -> tuple[Outcome, str]:
    """In what way the tokens of a violated arm are not stock's."""
    lossless = arm.losslessness
    if not run.job.plan.sampling.greedy:
        drawn = None if lossless is None else lossless.distribution_test
        if drawn is not None and not drawn.passed:
            told = f"z = {drawn.z:.3g}, p = {drawn.p_value:.2g}, {drawn.tokens} tokens"
            return "LOSSY_DISTRIBUTION", f"the emitted tokens are not distributed as stock's: {told}"
        return "LOSSY", "the output ends where stock's would not"
    if lossless is not None and lossless.mismatches == lossless.near_ties:
        return "LOSSY", "the output ends where stock's does not"
    wrong = 0 if lossless is None else lossless.mismatches
    total = 0 if lossless is None else lossless.tokens
    return "LOSSY", f"{wrong} of {total} emitted tokens are not stock's"


def _unjudged(run: StoredRun, arm: ArmResult) -> str | None:
    """Why nothing is known of an arm's tokens, none of which is known to be wrong; None if something is.

    Above temperature 0 no token has a verdict of its own, and the test of their distribution is the verdict.
    It sees the first draw of a prompt, so that all that were timed must be that one.
    """
    greedy, found = run.job.plan.sampling.greedy, arm.losslessness
    if found is None or not found.tokens or (greedy and found.stock_verdict == "not-judged"):
        return "the oracle gave no verdict"
    if not greedy and found.distribution_test is None:
        return (
            f"{found.tokens} tokens are too few or too certain to test their distribution; give the stage "
            "more prompts, or the plan a larger `sampling.max_tokens`"
        )
    others = () if greedy else redrawn(one for one in run.responses if one.arm == arm.name)
    if others:
        return (
            f"drew other tokens when it was asked again ({len(others)} prompts, first {others[0]}), and only "
            "the first draw is tested; let the backend keep to the seed of a request"
        )
    return None


def broken_guardrail(arm: ArmResult, stock: ArmResult, rules: Rules) -> str | None:
    """The first guardrail that is broken."""
    mine, theirs = arm.latency, stock.latency
    if mine is None or theirs is None:
        return "latency could not be measured"
    limits = (
        ("time to first token", mine.ttft_median, theirs.ttft_median, rules.ttft_margin),
        ("90 % quantile of the request", mine.e2e_p90, theirs.e2e_p90, rules.tail_margin),
    )
    for what, value, before, margin in limits:
        if value > before * (1.0 + margin) + CLOCK_MS:
            return f"{what}: {value:.1f} ms, stock {before:.1f} ms, margin {margin:.0%}"
    return None


def _gain(arm: ArmResult, stage: Stage, rules: Rules) -> tuple[Outcome, str]:
    speedup = arm.speedup
    if speedup is None or not math.isfinite(speedup.point):
        return "INVALID", "no speedup could be computed"
    limit = 1.0 + rules.gain
    told = f"{speedup.point:.3f}x [{speedup.low:.3f}, {speedup.high:.3f}] over stock on public rows"
    if speedup.point <= limit:
        return "NO_GAIN", told
    if stage == "measure" and (not has_width(speedup) or speedup.low <= limit):
        return "INCONCLUSIVE", told
    return "PASSED", told
