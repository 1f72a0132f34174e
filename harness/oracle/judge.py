"""The rule: exact, near-tie, violated. From forced positions and stop faults to a verdict.

A position agrees if the emitted token is stock's argmax. One that does not is a near tie if the
token is among stock's top two and its gap is at most the measured margin. Near ties are excused
only while they are no more frequent than stock's own. Nothing else is. No file and no model here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from harness.oracle.distribution import Surprise, judge_surprises
from harness.oracle.force import Forced
from harness.oracle.margin import StockBaseline
from harness.oracle.statement import statement
from harness.plan import Job
from harness.protocols import ForcedPosition
from harness.records import Response
from harness.results import (
    LOSSLESS,
    ArmLosslessness,
    DistributionTest,
    Divergence,
    Losslessness,
    RateTest,
    StockVerdict,
    StopFault,
)
from harness.stats.error_rates import one_sided_rate_test, rule_of_three

RATE_LEVEL = 0.01  # of the rule
MAX_DIVERGENCES = 100
SEVERITY: tuple[StockVerdict, ...] = ("exact", "near-tie", "not-judged", "violated")

Test = TypeVar("Test", RateTest, DistributionTest)
Key = tuple[str, tuple[int, ...]]  # prompt id and emitted ids: what is forced once


class Judged(NamedTuple):
    """The verdict on the run and on each arm."""

    overall: Losslessness
    arms: Mapping[str, ArmLosslessness]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that a verdict rests on."""

    job: Job
    responses: Sequence[Response]
    forced: Mapping[Key, Forced]  # for every finished response
    baseline: StockBaseline
    stop_faults: Sequence[StopFault]
    token_text: Callable[[int], str]
    scorer: Mapping[str, Any]


class _Evidence(NamedTuple):
    """What one set of responses shows."""

    verdict: StockVerdict
    tokens: int
    mismatches: int
    near_ties: int
    distinct_positions: int
    rate: RateTest | None
    distribution: DistributionTest | None


def is_near_tie(position: ForcedPosition, margin: float) -> bool:
    """Whether a token that is not stock's argmax is excused.

    A token with the same logit as the runner-up counts as one of the top two: which of them has the
    lower id says nothing. One below the runner-up is never excused, however small the gap.
    """
    among_top_two = position.token_logit >= position.runner_up_logit
    return among_top_two and position.top_logit - position.token_logit <= margin


def agrees(position: ForcedPosition) -> bool:
    """Whether the emitted token is stock's argmax, lowest id on ties."""
    return position.token_id == position.top_id


def judge(case: Case) -> Judged:
    """Apply the rule to every arm and to the whole run; the run is as good as its worst arm."""
    finished = [response for response in case.responses if response.status == "ok"]
    by_arm = {arm.name: [r for r in finished if r.arm == arm.name] for arm in case.job.plan.arms}
    baseline = by_arm[case.job.plan.baseline.name]
    evidence = {name: _evidence(case, own, one_arm=True) for name, own in by_arm.items()}
    whole = _evidence(case, finished, one_arm=False)
    arms = {
        arm.name: ArmLosslessness(
            stock_verdict=evidence[arm.name].verdict,
            self_exact=_self_exact(case.job, by_arm[arm.name], baseline),
            responses=len(by_arm[arm.name]),
            tokens=evidence[arm.name].tokens,
            mismatches=evidence[arm.name].mismatches,
            near_ties=evidence[arm.name].near_ties,
            ar_identical=_ar_identical(by_arm[arm.name], baseline),
            distribution_test=evidence[arm.name].distribution,
        )
        for arm in case.job.plan.arms
    }
    return Judged(_overall(case, [whole, *evidence.values()], finished, arms), arms)


def _overall(
    case: Case,
    evidence: Sequence[_Evidence],
    finished: Sequence[Response],
    arms: Mapping[str, ArmLosslessness],
) -> Losslessness:
    """The record of the run; `evidence` holds that of all responses first, then the arms'."""
    whole = evidence[0]
    verdict = max((e.verdict for e in evidence), key=SEVERITY.index)
    found = Losslessness(
        stock_verdict=verdict,
        self_exact=_all_or_none([arm.self_exact for arm in arms.values()]),
        tokens=whole.tokens,
        mismatches=whole.mismatches,
        near_ties=whole.near_ties,
        error_bound=rule_of_three(whole.distinct_positions)
        if verdict in LOSSLESS and whole.distinct_positions
        else None,
        distinct_positions=whole.distinct_positions,
        statement="",
        margin=case.baseline.margin,
        stock_noise=case.baseline.noise,
        rate_test=_harshest(e.rate for e in evidence),
        distribution_test=_harshest(e.distribution for e in evidence),
        divergences=_divergences(case, finished),
        stop_faults=tuple(case.stop_faults),
        scorer=dict(case.scorer),
        sampled_test=_sampled_test(case.job, arms),
    )
    plan = case.job.plan
    text = statement(found, plan.effective_division, plan.label)
    return msgspec.structs.replace(found, statement=text)


def _harshest(tests: Iterable[Test | None]) -> Test | None:
    """The test with the smallest p-value; that of the whole run where several are equal."""
    return min((test for test in tests if test is not None), key=lambda t: t.p_value, default=None)


def _evidence(case: Case, responses: Sequence[Response], *, one_arm: bool) -> _Evidence:
    margin = case.baseline.margin.value
    views = [case.forced[key_of(response)] for response in responses]
    wrong = [p for view in views for p in view.positions if not agrees(p)]
    near = sum(is_near_tie(position, margin) for position in wrong)
    tokens = sum(len(response.token_ids) for response in responses)
    distinct = tuple(_distinct(case, responses))
    own = {(r.arm, r.launch, r.block, r.prompt_id) for r in responses}
    faulty = any((f.arm, f.launch, f.block, f.prompt_id) in own for f in case.stop_faults)
    if not case.job.plan.sampling.greedy:
        # Two arms may share their draws, so that only those of one arm are independent.
        test = judge_surprises(_drawn(case, responses)) if one_arm else None
        failed = faulty or (test is not None and not test.passed)
        return _Evidence("violated" if failed else "not-judged", tokens, 0, 0, len(distinct), None, test)
    ties = sum(not agrees(position) for position in distinct)
    noise = case.baseline.noise
    rate = (
        one_sided_rate_test(ties, len(distinct), noise.disagreements, noise.positions, RATE_LEVEL)
        if distinct
        else None
    )
    verdict: StockVerdict = "exact"
    if not distinct:
        verdict = "not-judged"
    if wrong:
        verdict = "near-tie"
    if faulty or near < len(wrong) or (ties and rate is not None and not rate.passed):
        verdict = "violated"
    return _Evidence(verdict, tokens, len(wrong), near, len(distinct), rate, None)


def key_of(response: Response) -> Key:
    """What a response is forced under: repeated ones are forced once."""
    return response.prompt_id, response.token_ids


def _drawn(case: Case, responses: Iterable[Response]) -> Iterable[Surprise]:
    """The tokens of one draw a prompt: the first, whatever it holds.

    The seed is the same every time, so a repeat is the same draw again where seeds are kept. To keep
    repeats that differ, or to drop those that are alike, would choose among draws by what they are.
    """
    first: dict[str, Response] = {}
    for response in sorted(responses, key=lambda r: (r.launch, r.block)):
        first.setdefault(response.prompt_id, response)
    for response in first.values():
        yield from case.forced[key_of(response)].surprises


def _distinct(case: Case, responses: Iterable[Response]) -> Iterable[ForcedPosition]:
    """Every position once: sequences of a prompt share the positions of their common beginning.

    In sorted order a sequence shares most with its neighbour, so what lies beyond the common
    beginning with the neighbour is new.
    """
    before: Key = ("", ())
    for key in sorted({key_of(response) for response in responses}):
        view = case.forced[key]
        start = common_length(before[1], key[1]) if before[0] == key[0] else 0
        for index in range(start, len(view.positions)):
            yield view.positions[index]
        before = key


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning."""
    shortest = min(len(left), len(right))
    return next((n for n in range(shortest) if left[n] != right[n]), shortest)


def _self_exact(job: Job, own: Sequence[Response], baseline: Sequence[Response]) -> bool | None:
    """Whether the engine's logits were bitwise those of its own `ar`, prompt by prompt.

    Above temperature 0 outputs may rightly differ, and then their logits cannot be compared.
    """
    hashes: dict[str, set[str]] = {}
    for response in (*own, *baseline):
        if response.logits_sha256 is None:
            return None
        hashes.setdefault(response.prompt_id, set()).add(response.logits_sha256)
    covered = {response.prompt_id for response in own} <= {response.prompt_id for response in baseline}
    if not own or not covered:
        return None
    if not job.plan.sampling.greedy and len({key_of(response) for response in (*own, *baseline)}) > len(
        {response.prompt_id for response in (*own, *baseline)}
    ):
        return None
    return all(len(hashes[response.prompt_id]) == 1 for response in own)


def _ar_identical(own: Sequence[Response], baseline: Sequence[Response]) -> int:
    """Responses whose ids are those of the first `ar` response on the prompt.

    Above temperature 0 the seed of both was the same; engines need not make the same of it.
    """
    first: dict[str, tuple[int, ...]] = {}
    for response in baseline:
        first.setdefault(response.prompt_id, response.token_ids)
    return sum(response.token_ids == first.get(response.prompt_id) for response in own)


def _sampled_test(job: Job, arms: Mapping[str, ArmLosslessness]) -> Literal["seeded", "distribution"] | None:
    """Whether every arm gave the baseline's own draws, or only its distribution can be tested."""
    if job.plan.sampling.greedy:
        return None
    same = all(arm.responses and arm.ar_identical == arm.responses for arm in arms.values())
    return "seeded" if same else "distribution"


def _all_or_none(values: Sequence[bool | None]) -> bool | None:
    """False if any is, else None if any is unknown, else True."""
    if False in values:
        return False
    return None if None in values or not values else True


def _divergences(case: Case, responses: Sequence[Response]) -> tuple[Divergence, ...]:
    """The first divergence of each response, and its first that is not excused; the latter lead."""
    if not case.job.plan.sampling.greedy:
        return ()
    found = [
        divergence_of(case, response, index)
        for response in responses
        for index in _first_wrong(case, response)
    ]
    return tuple(sorted(found, key=lambda d: d.near_tie)[:MAX_DIVERGENCES])


def _first_wrong(case: Case, response: Response) -> Sequence[int]:
    positions = case.forced[key_of(response)].positions
    wrong = [index for index, position in enumerate(positions) if not agrees(position)]
    margin = case.baseline.margin.value
    unexcused = [index for index in wrong if not is_near_tie(positions[index], margin)]
    return sorted({*wrong[:1], *unexcused[:1]})


def divergence_of(case: Case, response: Response, index: int) -> Divergence:
    """One emitted token that is not stock's argmax, for the report."""
    position = case.forced[key_of(response)].positions[index]
    return Divergence(
        prompt_id=response.prompt_id,
        arm=response.arm,
        launch=response.launch,
        block=response.block,
        position=index,
        token_id=position.token_id,
        stock_token_id=position.top_id,
        token_text=case.token_text(position.token_id),
        stock_text=case.token_text(position.top_id),
        gap=position.top_logit - position.token_logit,
        top_two=position.token_logit >= position.runner_up_logit,
        near_tie=is_near_tie(position, case.baseline.margin.value),
    )
