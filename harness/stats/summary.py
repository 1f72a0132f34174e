"""The one front of the statistics: from all responses of a run to the numbers of each arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.errors import UndefinedMetric
from harness.plan import Plan, StatsSpec
from harness.records import Prompt, Response
from harness.results import (
    Acceptance,
    CategorySpeedup,
    Interval,
    Latency,
    Load,
    SetAcceptance,
    SetSpeedup,
    SpeedVerdict,
)
from harness.stats.acceptance import acceptance, acceptance_by_set
from harness.stats.equivalence import has_width, speed_verdict
from harness.stats.latency import latency
from harness.stats.load import load
from harness.stats.pairs import batch_cost, batches, request_cost
from harness.stats.speedup import Speedup, check_spec, compare_arms
from harness.stats.stability import unstable_arm, unstable_run


class ArmSpeed(NamedTuple):
    """The numbers of one arm; None where it has no data for one."""

    name: str
    requests: int
    failed: int
    pairs: int  # complete pairs with the baseline
    lost: int  # pairs with a failed or missing side, left out on both sides
    tokens: int
    tokens_per_second: float | None
    speedup: Interval | None
    speedup_geomean: Interval | None
    speedup_decode: Interval | None
    by_category: tuple[CategorySpeedup, ...]
    speedup_by_set: tuple[SetSpeedup, ...]
    slower_share: float | None
    verdict: SpeedVerdict | None
    acceptance: Acceptance | None
    acceptance_by_set: tuple[SetAcceptance, ...]
    latency: Latency | None
    load: Load | None
    warnings: tuple[str, ...]


class RunSpeeds(NamedTuple):
    """All arms by name, in the order of the plan, and every warning once."""

    arms: Mapping[str, ArmSpeed]
    warnings: tuple[str, ...]


def summarise_arms(responses: Sequence[Response], prompts: Sequence[Prompt], plan: Plan) -> RunSpeeds:
    """Every arm of the plan against its baseline.

    Failed requests are counted and their pairs left out; whether such a run is valid at all is
    the audits' to say. The baseline against itself is 1 by definition. The result is a function
    of the responses and `plan.stats`, whatever the other arms of the plan are.

    Args:
        responses: of the whole run, all arms.
        prompts: of the run; they carry the categories.
        plan: its arms, batch size, and `stats`.

    Raises:
        UsageError: a field of `plan.stats` is out of range.
        DataError: an arm answers a prompt twice in one block.
    """
    check_spec(plan.stats)
    categories = {prompt.prompt_id: prompt.category for prompt in prompts}
    sets = {prompt.prompt_id: prompt.set_name for prompt in prompts}
    batched = plan.measure.batch > 1
    own = {arm.name: [r for r in responses if r.arm == arm.name] for arm in plan.arms}
    baseline = plan.baseline.name
    arms = {}
    for name, mine in own.items():
        against = None
        if name != baseline:
            against = compare_arms(own[baseline], mine, categories, plan.stats, sets=sets, batched=batched)
        speed = _arm_speed(name, mine, against, plan.stats, batched=batched)
        arms[name] = speed._replace(acceptance_by_set=acceptance_by_set(mine, sets))
    told = [warning for arm in arms.values() for warning in arm.warnings]
    return RunSpeeds(arms, tuple(dict.fromkeys(told)))


def tokens_per_second(responses: Sequence[Response], *, batched: bool) -> float | None:
    """Emitted tokens over summed response time of what succeeded; a batch's time counts once."""
    groups = batches(responses) if batched else [(response,) for response in responses]
    costs = [batch_cost([r for r in group if request_cost(r) is not None]) for group in groups]
    known = [cost for cost in costs if cost is not None]
    busy = sum(cost.total_ns for cost in known)
    return sum(cost.tokens for cost in known) * 1e9 / busy if busy else None


def _arm_speed(
    name: str, responses: Sequence[Response], against: Speedup | None, spec: StatsSpec, *, batched: bool
) -> ArmSpeed:
    warnings: list[str] = []
    good = [response for response in responses if response.status == "ok"]
    headline = _unity(good, spec) if against is None else against.headline
    verdict: SpeedVerdict | None = None
    if against is None:
        verdict = "baseline" if good else None
    elif against.headline is not None:
        verdict = speed_verdict(against.headline, spec.equivalence_margin)
        warnings += _speed_warnings(name, against)
    else:
        warnings.append(f"arm {name}: no request succeeded in both it and the baseline, so it has no speedup")
    return ArmSpeed(
        name=name,
        requests=len(responses),
        failed=len(responses) - len(good),
        pairs=0 if against is None else against.pairs,
        lost=0 if against is None else against.lost,
        tokens=sum(len(response.token_ids) for response in good),
        tokens_per_second=tokens_per_second(responses, batched=batched),
        speedup=headline,
        speedup_geomean=headline if against is None else against.geometric_mean,
        speedup_decode=headline if against is None else against.decode,
        by_category=() if against is None else against.by_category,
        speedup_by_set=() if against is None else against.by_set,
        slower_share=None if against is None else against.slower_share,
        verdict=verdict,
        acceptance=_acceptance(name, good, warnings),
        acceptance_by_set=(),
        latency=latency(good) if good else None,
        load=load(responses, spec),
        warnings=tuple(warnings),
    )


def _speed_warnings(name: str, against: Speedup) -> list[str]:
    warnings = []
    if against.lost:
        warnings.append(
            f"arm {name}: {against.lost} of {against.pairs + against.lost} pairs with the baseline have a "
            "failed or missing side and are left out on both sides; see the failed requests and run again"
        )
    if against.grid is not None:
        warnings += [*unstable_run(against.grid), *unstable_arm(name, against.grid)]
    headline, typical = against.headline, against.geometric_mean
    if headline is not None and not has_width(headline):
        warnings.append(
            f"arm {name}: its interval has no width, so no verdict is given; measure more than once"
        )
    if headline is not None and typical is not None and (headline.point - 1.0) * (typical.point - 1.0) < 0.0:
        warnings.append(
            f"arm {name}: the workload as a whole and the typical prompt disagree: total-time "
            f"ratio {headline.point:.2f}, geometric mean {typical.point:.2f}; a few long prompts "
            "decide the headline"
        )
    return warnings


def _acceptance(name: str, good: Sequence[Response], warnings: list[str]) -> Acceptance | None:
    if not good or any(response.chunks for response in good):
        return None  # a server tells of no verify step; its counters stand in the audits
    try:
        return acceptance(good)
    except UndefinedMetric as undefined:
        warnings.append(f"arm {name}: {undefined}")
        return None


def _unity(good: Sequence[Response], spec: StatsSpec) -> Interval | None:
    """The baseline over itself."""
    if not good:
        return None
    rows = {(response.launch, response.block) for response in good}
    launches = {launch for launch, _ in rows}
    return Interval(
        point=1.0,
        low=1.0,
        high=1.0,
        confidence=spec.confidence,
        method="the baseline over itself: 1 by definition",
        launches=len(launches),
        blocks=max(sum(row[0] == launch for row in rows) for launch in launches),
        prompts=len({response.prompt_id for response in good}),
        resamples=0,
    )
