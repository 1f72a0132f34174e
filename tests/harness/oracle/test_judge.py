from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from harness.codec import canonical_json, from_json
from harness.oracle.distribution import Surprise
from harness.oracle.force import Forced
from harness.oracle.judge import Judged, is_near_tie, judge, key_of
from harness.plan import Division
from harness.protocols import ForcedPosition
from harness.records import Response, Sampling
from harness.results import Losslessness, StopFault
from tests.harness.oracle.stock import (
    agreed,
    baseline,
    case,
    failed,
    job,
    position,
    response,
    second,
    third,
)

AR = response([1, 2, 3, 4])


def judged(
    ids: Sequence[int], seen: Sequence[ForcedPosition] | None = None, **more: Any
) -> tuple[str, Losslessness]:
    """The verdict on an arm that emitted `ids`, beside an `ar` that agrees with stock."""
    one = response(ids, arm="stock")
    views = {} if seen is None else {tuple(ids): seen}
    found = judge(case([AR, one], views, **more))
    return found.arms["stock"].stock_verdict, found.overall


def with_one(wrong: ForcedPosition) -> list[ForcedPosition]:
    return [agreed(1), wrong, agreed(3), agreed(5)]


def test_all_argmax_is_exact() -> None:
    verdict, overall = judged([1, 2, 3, 5])
    assert verdict == overall.stock_verdict == "exact"
    assert (overall.mismatches, overall.near_ties, overall.divergences) == (0, 0, ())


def test_the_second_best_within_the_margin_is_a_near_tie() -> None:
    verdict, overall = judged([1, 2, 3, 5], with_one(second(2, 0.4)))
    assert verdict == overall.stock_verdict == "near-tie"
    assert (overall.mismatches, overall.near_ties) == (1, 1)


def test_a_gap_equal_to_the_margin_is_still_a_near_tie() -> None:
    assert judged([1, 2, 3, 5], with_one(second(2, 0.5)))[0] == "near-tie"


def test_a_gap_beyond_the_margin_is_violated() -> None:
    verdict, overall = judged([1, 2, 3, 5], with_one(second(2, 0.51)))
    assert verdict == overall.stock_verdict == "violated"
    assert (overall.mismatches, overall.near_ties) == (1, 0)


def test_a_tie_is_not_excused_when_the_token_is_third() -> None:
    assert judged([1, 2, 3, 5], with_one(third(2, 0.01)))[0] == "violated"


def test_a_token_level_with_the_runner_up_is_one_of_the_top_two() -> None:
    assert is_near_tie(position(6, (1, 5.0), (2, 4.9), 4.9), 0.5)
    assert not is_near_tie(position(6, (1, 5.0), (2, 4.9), 4.89), 0.5)


def test_an_exact_tie_that_is_not_the_lowest_id_is_a_near_tie_not_exact() -> None:
    assert judged([1, 2, 3, 5], with_one(second(2, 0.0)), noise=baseline(0.0))[0] == "near-tie"


def test_judging_goes_on_after_a_near_tie() -> None:
    seen = [agreed(1), second(2, 0.1), third(3, 0.1), agreed(5)]
    verdict, overall = judged([1, 2, 3, 5], seen)
    assert verdict == "violated"
    assert (overall.mismatches, overall.near_ties) == (2, 1)
    assert [(d.position, d.near_tie) for d in overall.divergences] == [(2, False), (1, True)]


def many_ties(count: int, length: int) -> tuple[Response, list[ForcedPosition]]:
    ids = [n % 7 for n in range(length)]
    return response(ids, arm="stock"), [second(t, 0.1) if n < count else agreed(t) for n, t in enumerate(ids)]


@pytest.mark.parametrize(
    ("ties", "verdict"), [(4, "near-tie"), (40, "violated")], ids=["as stock", "above stock"]
)
def test_near_ties_are_excused_only_while_they_are_no_more_frequent_than_stocks_own(
    ties: int, verdict: str
) -> None:
    one, seen = many_ties(ties, 200)
    found = judge(case([AR, one], {one.token_ids: seen}, noise=baseline(flips=4, positions=200)))
    assert found.arms["stock"].stock_verdict == found.overall.stock_verdict == verdict
    assert found.overall.rate_test is not None
    assert found.overall.rate_test.passed is (verdict == "near-tie")
    assert found.overall.rate_test.level == 0.01


def test_a_high_rate_in_one_arm_is_not_hidden_by_many_good_arms() -> None:
    one, seen = many_ties(9, 200)
    good = [response([n % 5, *(t % 7 for t in range(199))], arm="ar", prompt=f"own/p{n}") for n in range(20)]
    found = judge(case([*good, one], {one.token_ids: seen}, noise=baseline(flips=1, positions=1000)))
    assert found.arms["ar"].stock_verdict == "exact"
    assert found.arms["stock"].stock_verdict == found.overall.stock_verdict == "violated"


def test_the_same_near_tie_in_every_launch_counts_once_and_stays_a_near_tie() -> None:
    # 40 repeats would be far above stock's rate if each were new evidence.
    repeats = [response([1, 2, 3, 5], arm="stock", launch=launch) for launch in range(40)]
    found = judge(case([AR, *repeats], {(1, 2, 3, 5): with_one(second(2, 0.1))}))
    assert found.arms["stock"].stock_verdict == "near-tie"
    assert found.arms["stock"].mismatches == found.arms["stock"].near_ties == 40
    assert found.overall.rate_test is not None
    assert found.overall.rate_test.near_ties == 1


def test_positions_of_a_common_beginning_count_once() -> None:
    long, other = response([1, 2, 3, 5], arm="stock"), response([1, 2, 6], arm="stock", block=1)
    found = judge(case([AR, long, other], {}))
    # After 1 2 come 3 and 6; after 1 2 3 come 4 (ar) and 5.
    assert found.overall.distinct_positions == 6
    assert found.overall.tokens == 4 + 4 + 3
    assert found.overall.error_bound == pytest.approx(3 / 6)


def test_the_same_ids_on_another_prompt_are_other_positions() -> None:
    found = judge(case([AR, response([1, 2, 3, 4], prompt="own/p1")], {}))
    assert found.overall.distinct_positions == 8


FAULT = StopFault(
    prompt_id="own/p0", arm="stock", launch=0, block=0, position=3, fault="a token after the stop"
)


def test_a_stop_fault_is_violated_although_every_token_is_argmax() -> None:
    verdict, overall = judged([1, 2, 3, 5], faults=[FAULT])
    assert verdict == overall.stock_verdict == "violated"
    assert overall.stop_faults == (FAULT,)
    assert "a token after the stop" in overall.statement


def test_a_stop_fault_of_one_arm_is_not_held_against_another() -> None:
    found = judge(case([AR, response([1, 2, 3, 4], arm="stock")], {}, faults=[FAULT]))
    assert found.arms["ar"].stock_verdict == "exact"
    assert found.arms["stock"].stock_verdict == "violated"


def test_the_run_is_as_good_as_its_worst_arm() -> None:
    wrong = response([6, 6, 6, 6], arm="null")
    found = judge(
        case([AR, wrong], {(6, 6, 6, 6): [third(6, 1.0)] * 4}, run=job(arms=("ar", "stock", "null")))
    )
    assert [found.arms[name].stock_verdict for name in ("ar", "stock", "null")] == [
        "exact",
        "not-judged",
        "violated",
    ]
    assert found.overall.stock_verdict == "violated"


def test_an_arm_without_a_finished_response_is_not_judged() -> None:
    found = judge(case([AR, failed("stock")], {}))
    assert found.arms["stock"].stock_verdict == found.overall.stock_verdict == "not-judged"
    assert found.arms["stock"].responses == 0


# self_exact and ar_identical


def exactness(own: Sequence[str | None], ar: Sequence[str | None]) -> tuple[bool | None, bool | None]:
    responses = [response([1, 2, 3, 4], logits_sha256=h, launch=n) for n, h in enumerate(ar)]
    responses += [response([1, 2, 3, 4], arm="stock", logits_sha256=h, launch=n) for n, h in enumerate(own)]
    found = judge(case(responses, {}))
    return found.arms["stock"].self_exact, found.overall.self_exact


@pytest.mark.parametrize(
    ("own", "ar", "wanted"),
    [
        (["x", "x"], ["x", "x"], (True, True)),
        (["x", "y"], ["x", "x"], (False, False)),
        (["x", "x"], ["x", "y"], (False, False)),
        ([None, "x"], ["x", "x"], (None, None)),
        (["x", "x"], [None, None], (None, None)),
    ],
    ids=["all equal", "one differs", "ar differs from itself", "one not captured", "ar not captured"],
)
def test_self_exact_is_bitwise_equality_with_ar_on_the_same_prompt(
    own: list[str | None], ar: list[str | None], wanted: tuple[bool | None, bool | None]
) -> None:
    assert exactness(own, ar) == wanted


def test_self_exact_is_unknown_on_a_prompt_that_ar_did_not_finish() -> None:
    ar = response([1, 2, 3, 4], logits_sha256="x")
    lone = response([1, 2, 3, 4], arm="stock", prompt="own/p1", logits_sha256="x")
    assert judge(case([ar, lone], {})).arms["stock"].self_exact is None


def test_ar_identical_counts_responses_with_the_ids_of_ar() -> None:
    same, other = response([1, 2, 3, 4], arm="stock"), response([1, 2, 3, 5], arm="stock", block=1)
    assert judge(case([AR, same, other], {})).arms["stock"].ar_identical == 1


# T > 0


def sampled(log_probability: float, count: int = 400) -> Judged:
    run = job(Sampling(max_tokens=count, temperature=1.0))
    ids = [n % 7 for n in range(count)]
    responses = [response(ids), response(ids, arm="stock")]
    made = case(responses, {}, run=run)
    surprises = tuple(Surprise(log_probability, -1.0, 0.5) for _ in ids)
    forced = {key_of(r): Forced(tuple(third(t, 9.0) for t in ids), surprises) for r in responses}
    return judge(dataclasses.replace(made, forced=forced))


def test_sampled_output_is_not_judged_against_the_argmax() -> None:
    found = sampled(-1.0)
    assert found.overall.stock_verdict == "not-judged"
    assert found.overall.mismatches == 0
    assert found.arms["stock"].self_exact is None
    assert "ossless" not in found.overall.statement


@pytest.mark.parametrize(("log_probability", "word"), [(-0.5, "likely"), (-1.5, "unlikely")])
def test_sampled_output_that_is_not_of_stocks_distribution_is_violated(
    log_probability: float, word: str
) -> None:
    found = sampled(log_probability)
    assert found.overall.stock_verdict == "violated"
    assert f"too {word} under" in found.overall.statement
    assert found.overall.distribution_test is not None
    assert found.overall.distribution_test.tokens == 400  # of one arm: the other may share its draws


def drawn(stock_ids: list[int], candidate: list[list[int]]) -> Judged:
    """A baseline with one response, an arm with a response in each of several blocks."""
    run = job(Sampling(max_tokens=8, temperature=1.0))
    responses = [response(stock_ids)]
    responses += [response(ids, arm="stock", block=block) for block, ids in enumerate(candidate)]
    made = case(responses, {}, run=run)
    forced = {
        key_of(r): Forced(
            tuple(third(t, 9.0) for t in r.token_ids), tuple(Surprise(-1.0, -1.0, 0.01) for _ in r.token_ids)
        )
        for r in responses
    }
    return judge(dataclasses.replace(made, forced=forced))


def test_repeats_of_a_seed_are_no_further_draws() -> None:
    found = drawn([1] * 8, [[2] * 8, [3] * 7, [2] * 8]).arms["stock"].distribution_test
    assert found is not None
    assert found.tokens == 8


@pytest.mark.parametrize(
    ("candidate", "test", "said"),
    [
        pytest.param([[1] * 8, [1] * 8], "seeded", True, id="the baseline's ids every time"),
        pytest.param([[1] * 8, [2] * 8], "distribution", False, id="once other ids"),
    ],
)
def test_the_report_says_whether_seeds_were_kept(candidate: list[list[int]], test: str, said: bool) -> None:
    found = drawn([1] * 8, candidate).overall
    assert found.sampled_test == test
    assert ("under the same seed every arm gave" in found.statement) is said
    assert judge(case([AR], {})).overall.sampled_test is None


def test_the_power_of_the_test_is_told() -> None:
    test = sampled(-1.0).overall.distribution_test
    assert test is not None
    assert len(test.detects) == 5


# what is said


@pytest.mark.parametrize("division", ["relaxed", "synthetic", "system"])
def test_a_division_that_makes_no_claim_never_says_lossless(division: Division) -> None:
    for seen in (None, with_one(second(2, 0.1)), with_one(third(2, 1.0))):
        overall = judged([1, 2, 3, 5], seen, run=job(division=division))[1]
        assert "ossless" not in overall.statement


def test_only_a_verdict_that_holds_says_lossless() -> None:
    assert judged([1, 2, 3, 5])[1].statement.startswith("Lossless: each of the 8 emitted tokens")
    assert judged([1, 2, 3, 5], with_one(second(2, 0.1)))[1].statement.startswith(
        "Lossless up to near ties: 1 of"
    )
    assert "ossless" not in judged([1, 2, 3, 5], with_one(third(2, 0.1)))[1].statement


def test_a_smoke_run_says_that_it_is_one() -> None:
    assert "smoke run" in judged([1, 2, 3, 5], run=job(label="smoke"))[1].statement
    assert "smoke" not in judged([1, 2, 3, 5])[1].statement


def test_a_violation_names_arm_prompt_position_and_both_tokens() -> None:
    text = judged([1, 2, 3, 5], with_one(third(2, 1.0)))[1].statement
    for part in ("arm stock", "prompt own/p0", "position 1", "'<2>' (token 2)", "'<3>' (token 3)", "gap 1 "):
        assert part in text


def test_a_weak_check_says_so() -> None:
    tie = with_one(second(2, 0.1))
    assert "at 53% of positions" in judged([1, 2, 3, 5], tie, noise=baseline(blind=0.53))[1].statement
    assert "weak" not in judged([1, 2, 3, 5], tie, noise=baseline(blind=0.02))[1].statement


def test_no_error_bound_is_given_for_a_violated_run() -> None:
    assert judged([1, 2, 3, 5], with_one(third(2, 1.0)))[1].error_bound is None


def test_at_most_a_hundred_divergences_are_listed_the_unexcused_first() -> None:
    ties = [response([1, 2, 3, 5], arm="stock", launch=n) for n in range(120)]
    bad = response([6, 6, 6, 6], arm="stock", launch=121)
    views: dict[tuple[int, ...], list[ForcedPosition]]
    views = {(1, 2, 3, 5): with_one(second(2, 0.1)), (6, 6, 6, 6): [third(6, 1.0)] * 4}
    overall = judge(case([AR, *ties, bad], views)).overall
    assert len(overall.divergences) == 100
    assert overall.divergences[0].token_id == 6


def test_the_verdict_can_be_written_and_read_back() -> None:
    overall = judged([1, 2, 3, 5], with_one(third(2, 1.0)), faults=[FAULT])[1]
    assert from_json(canonical_json(overall), Losslessness, "verdict") == overall
    assert msgspec.to_builtins(overall)["stock_verdict"] == "violated"
