"""The front of the statistics."""

from __future__ import annotations

import random

import numpy as np
import pytest

from harness.errors import UsageError
from harness.plan import ArmKind, ArmSpec, MeasureSpec, Plan, SetSpec, StatsSpec
from harness.records import Prompt, Response, Sampling
from harness.stats.summary import RunSpeeds, summarise_arms, tokens_per_second
from tests.harness.stats.build import World, arm_responses, failed, response, with_steps


def _plan(kinds: dict[str, ArmKind], *, batch: int = 1, stats: StatsSpec | None = None) -> Plan:
    return Plan(
        schema="plan/1",
        name="given",
        deployment="given",
        label="smoke",
        sets=(SetSpec(name="own", count=3),),
        arms=tuple(ArmSpec(name=name, kind=kind, backend="a:b") for name, kind in kinds.items()),
        sampling=Sampling(max_tokens=8),
        measure=MeasureSpec(batch=batch),
        stats=stats or StatsSpec(resamples=500),
    )


def _prompts(names: list[str]) -> list[Prompt]:
    return [
        Prompt(prompt_id=name, set_name="own", category="chat", turns=("hi",), row_sha256="0" * 64)
        for name in names
    ]


def _run(responses: list[Response], plan: Plan) -> RunSpeeds:
    return summarise_arms(responses, _prompts(sorted({r.prompt_id for r in responses})), plan)


def _world_run() -> list[Response]:
    grid = World(prompts=24, launches=2, gain=0.05, length=0.1).draw(np.random.default_rng(0))
    return [
        *arm_responses("base", grid.baseline_ns, blocks=2),
        *arm_responses("ngram", grid.arm_ns, blocks=2),
    ]


PLAN = _plan({"ngram": "stock", "base": "ar"})


def test_each_arm_of_the_plan_is_summarised_in_its_order() -> None:
    found = _run(_world_run(), PLAN)
    assert list(found.arms) == ["ngram", "base"]
    stock = found.arms["ngram"]
    assert stock.verdict == "faster"
    assert stock.speedup is not None
    assert stock.speedup.low > 1.2
    assert (stock.requests, stock.failed, stock.pairs, stock.lost, stock.tokens) == (96, 0, 96, 0, 192)
    assert stock.acceptance is not None
    assert stock.acceptance.length == 1.0
    assert stock.latency is not None
    assert [c.category for c in stock.by_category] == ["chat"]


def test_the_baseline_is_one_by_definition() -> None:
    base = _run(_world_run(), PLAN).arms["base"]
    assert base.verdict == "baseline"
    assert base.speedup is not None
    assert (base.speedup.point, base.speedup.low, base.speedup.high, base.speedup.resamples) == (1, 1, 1, 0)
    assert (base.speedup.launches, base.speedup.blocks, base.speedup.prompts) == (2, 2, 24)
    assert base.speedup_geomean == base.speedup_decode == base.speedup
    assert (base.by_category, base.slower_share) == ((), None)


def test_the_result_does_not_depend_on_the_order_of_responses_or_on_other_arms() -> None:
    responses = _world_run()
    shuffled = random.Random(0).sample(responses, len(responses))  # noqa: S311 - an order, not a secret
    third = [response(f"p{n}", "third", launch=1) for n in range(24)]
    wider = _plan({"third": "null", "ngram": "stock", "base": "ar"})
    assert _run(shuffled, PLAN).arms["ngram"] == _run(responses, PLAN).arms["ngram"]
    assert _run([*third, *responses], wider).arms["ngram"] == _run(responses, PLAN).arms["ngram"]


def test_tokens_per_second_is_tokens_over_summed_time() -> None:
    found = _run(
        [
            response("a", "base", seconds=2.0, tokens=10),
            response("b", "base", seconds=3.0, tokens=20),
            failed("c", "base"),
        ],
        _plan({"base": "ar"}),
    )
    assert found.arms["base"].tokens_per_second == pytest.approx(6.0)
    assert (found.arms["base"].requests, found.arms["base"].failed) == (3, 1)


def test_a_batch_counts_once_in_tokens_per_second() -> None:
    batch = [
        response("a", seconds=4.0, tokens=10, order=0),
        response("b", seconds=2.0, tokens=6, order=0),
        response("c", seconds=4.0, tokens=8, order=1),
    ]
    assert tokens_per_second(batch, batched=True) == pytest.approx(24 / 8)
    assert tokens_per_second(batch, batched=False) == pytest.approx(24 / 10)
    assert tokens_per_second([failed()], batched=True) is None


def test_a_batched_plan_gives_the_batched_headline() -> None:
    responses = [
        response("a", "base", seconds=4.0),
        response("b", "base", seconds=1.0),
        response("a", "ngram", seconds=1.0, order=1),
        response("b", "ngram", seconds=2.0, order=1),
    ]
    batched = _run(responses, _plan({"base": "ar", "ngram": "stock"}, batch=2)).arms["ngram"].speedup
    assert batched is not None
    assert batched.point == pytest.approx(2.0)


def test_a_failed_request_is_counted_its_pair_left_out_and_a_warning_given() -> None:
    responses = _world_run()
    lost = responses[-1]
    responses[-1] = failed(lost.prompt_id, "ngram", launch=lost.launch, block=lost.block, order=lost.order)
    arm = _run(responses, PLAN).arms["ngram"]
    assert (arm.failed, arm.pairs, arm.lost) == (1, 95, 1)
    assert arm.speedup is not None
    assert any("1 of 96 pairs with the baseline have a failed or missing side" in w for w in arm.warnings)


def test_an_arm_that_failed_throughout_has_no_numbers_and_says_so() -> None:
    responses = [response("a", "base"), failed("a", "ngram")]
    arm = _run(responses, PLAN).arms["ngram"]
    assert (arm.speedup, arm.speedup_geomean, arm.speedup_decode, arm.verdict) == (None, None, None, None)
    assert (arm.acceptance, arm.latency, arm.tokens_per_second, arm.slower_share) == (None, None, None, None)
    assert any("no request succeeded in both it and the baseline" in w for w in arm.warnings)


def test_a_run_without_responses_has_no_numbers() -> None:
    found = summarise_arms([], [], PLAN)
    assert found.arms["base"].speedup is None
    assert found.arms["base"].verdict is None
    assert found.arms["ngram"].requests == 0


def test_single_token_responses_have_no_acceptance_and_say_why() -> None:
    arm = _run([response("a", "base", tokens=1), response("a", "ngram", tokens=1)], PLAN).arms["ngram"]
    assert arm.acceptance is None
    assert any("no response has a verify step" in w for w in arm.warnings)


def test_a_single_measurement_gets_no_verdict_whatever_its_ratio() -> None:
    responses = [response("a", "base", seconds=9.0), response("a", "ngram", seconds=1.0)]
    arm = _run(responses, PLAN).arms["ngram"]
    assert arm.verdict == "inconclusive"
    assert any("its interval has no width" in w for w in arm.warnings)


def test_a_headline_that_contradicts_the_typical_prompt_is_told() -> None:
    responses = [
        *arm_responses("base", np.array([[20.0, 0.5, 0.5]])),
        *arm_responses("ngram", np.array([[25.0, 0.2, 0.2]])),
    ]
    told = _run(responses, PLAN).warnings
    assert any("total-time ratio 0.83, geometric mean 1.71" in w for w in told)


def test_what_holds_for_the_whole_run_is_told_once() -> None:
    responses = _world_run()
    third = [
        response(r.prompt_id, "third", seconds=(r.end_ns or 0) / 2e9, launch=r.launch, block=r.block)
        for r in responses[:96]
    ]
    told = _run([*responses, *third], _plan({"base": "ar", "ngram": "stock", "third": "candidate"})).warnings
    assert sum("launches: 2" in w for w in told) == 1
    assert sum("speedup by launch" in w for w in told) == 2


def test_the_margin_of_the_plan_decides_equivalence() -> None:
    grid = World(prompts=40, launches=5, gain=0.005, mean=0.03, launch=0.001, block=0.001).draw(
        np.random.default_rng(0)
    )
    responses = [
        *arm_responses("base", grid.baseline_ns, blocks=2),
        *arm_responses("ngram", grid.arm_ns, blocks=2),
    ]
    kinds: dict[str, ArmKind] = {"base": "ar", "ngram": "stock"}
    narrow = _run(responses, _plan(kinds, stats=StatsSpec(resamples=500)))
    wide = _run(responses, _plan(kinds, stats=StatsSpec(resamples=500, equivalence_margin=0.05)))
    assert narrow.arms["ngram"].verdict == "faster"
    assert wide.arms["ngram"].verdict == "equivalent"


def test_acceptance_of_an_arm_comes_from_its_own_steps() -> None:
    responses = [response("p0", "base", tokens=4), with_steps([(3, 2, 3)])]
    arm = _run(responses, _plan({"base": "ar", "stock": "stock"})).arms["stock"]
    assert arm.acceptance is not None
    assert arm.acceptance.length == 3.0


def test_settings_out_of_range_are_refused_before_anything_is_computed() -> None:
    with pytest.raises(UsageError, match=r"stats\.resamples"):
        summarise_arms([], [], _plan({"base": "ar"}, stats=StatsSpec(resamples=1)))
