"""Acceptance from step counts."""

from __future__ import annotations

import msgspec
import pytest

from harness.errors import UndefinedMetric
from harness.records import Response
from harness.stats.acceptance import acceptance, acceptance_by_set, conditional
from tests.harness.stats.build import failed, plain_step, response, with_steps


def test_pooled_and_request_mean_lengths_differ_as_long_responses_weigh_more() -> None:
    """A: 100 steps of one token; B: 4 steps of five."""
    a = with_steps([(4, 0, 1)] * 100, "a")
    b = with_steps([(4, 4, 5)] * 4, "b")
    found = acceptance([a, b])
    assert round(found.length, 2) == 1.15
    assert round(found.length_request_mean, 2) == 3.00
    assert found.verify_steps == 104


def test_a_stop_inside_an_accepted_run_counts_only_what_was_committed() -> None:
    """[d1, d2, EOS, d4, d5, bonus] all right: an engine's counter says 6, three were committed."""
    found = acceptance([with_steps([(5, 3, 3)])])
    assert found.length == 3.0
    assert found.num_accepted_tokens == 3
    assert found.num_draft_tokens == 5
    assert found.per_position == (1.0, 1.0, 1.0, 0.0, 0.0)


def test_length_leaves_out_the_prefill_token_and_counts_the_bonus() -> None:
    reply = with_steps([(2, 2, 3), (2, 1, 2)])
    assert len(reply.token_ids) == 6
    assert acceptance([reply]).length == 2.5


def test_per_position_divides_by_offers_and_survival_by_all_steps() -> None:
    found = acceptance([with_steps([(3, 3, 4), (3, 1, 2), (1, 1, 2), (0, 0, 1)])])
    assert found.per_position == pytest.approx((3 / 3, 1 / 2, 1 / 2))
    assert found.survival == pytest.approx((3 / 4, 1 / 4, 1 / 4))
    assert found.histogram == (1, 2, 0, 1)
    assert found.acceptance_rate == pytest.approx(5 / 7)


def test_histogram_reaches_to_the_longest_draft() -> None:
    assert acceptance([with_steps([(4, 0, 1), (4, 1, 2)])]).histogram == (1, 1, 0, 0, 0)


def test_autoregressive_steps_have_length_one_and_no_rate() -> None:
    found = acceptance([response(tokens=5)])
    assert (found.length, found.acceptance_rate, found.per_position, found.survival) == (1.0, None, (), ())
    assert found.histogram == (4,)


def test_responses_without_a_verify_step_and_failed_ones_are_skipped() -> None:
    broken = msgspec.structs.replace(failed(), steps=(plain_step(), plain_step()))
    found = acceptance([response(tokens=1), broken, with_steps([(2, 2, 3)])])
    assert found.length_request_mean == 3.0


def test_no_verify_step_at_all_has_no_acceptance() -> None:
    with pytest.raises(UndefinedMetric, match="no response has a verify step"):
        acceptance([response(tokens=1), failed()])


def loops(prompt: str) -> Response:
    """One step of seven right drafts after the other, all the same token."""
    reply = with_steps([(7, 7, 8)] * 10, prompt)
    return msgspec.structs.replace(reply, token_ids=(5,) * len(reply.token_ids))


def test_each_set_is_told_without_outputs_that_repeat_themselves() -> None:
    """On `math` one text of length 1.5 and one loop of length 8; on `code` a loop alone."""
    math = [with_steps([(3, 1, 2), (3, 0, 1)], "m/0"), loops("m/1")]
    found = {one.set_name: one for one in acceptance_by_set([*math, loops("c/0")], SETS)}
    assert list(found) == ["math", "code"]
    assert (found["math"].responses, found["math"].degenerate) == (2, 1)
    assert found["math"].length == found["math"].length_request_mean == 1.5
    assert found["math"].verify_steps == 2
    assert found["math"].survival == (0.5, 0.0, 0.0)
    assert found["math"].length_with_degenerate == pytest.approx((3 + 80) / 12)
    assert found["code"].length is None
    assert found["code"].length_with_degenerate == 8.0
    assert found["code"].survival == found["code"].conditional == ()


SETS = {"m/0": "math", "m/1": "math", "c/0": "code"}


def test_failed_responses_and_those_without_a_step_are_no_part_of_a_set() -> None:
    assert acceptance_by_set([failed("m/0"), with_steps([], "m/1")], SETS) == ()


def test_the_conditional_share_asks_only_steps_that_got_so_far() -> None:
    """Of 4 first drafts 3 are right; of those 3 steps 2 drafted a second, right once; one step a third."""
    replies = with_steps([(3, 2, 3), (3, 1, 2), (1, 1, 2), (3, 0, 1)])
    assert conditional(replies.steps) == (3 / 4, 1 / 2, 0.0)
    assert conditional(with_steps([(2, 0, 1)]).steps) == (0.0, None)
