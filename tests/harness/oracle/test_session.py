from __future__ import annotations

import dataclasses

import msgspec
import pytest

from harness.errors import DataError, InvalidRun, UsageError
from harness.models import resolve_model
from harness.oracle.session import open_stock, run_oracle
from harness.progress import SilentReporter
from harness.records import Response
from tests.harness.oracle.runs import CALIBRATION, MAX_TOKENS, TinyRun, prompts
from tests.harness.oracle.stock import HashStock, failed


def changed(one: Response, position: int, token: int) -> Response:
    ids = list(one.token_ids)
    ids[position] = token
    return msgspec.structs.replace(one, token_ids=tuple(ids), text=None)


def test_an_engine_that_emits_what_stock_says_is_exact(tiny: TinyRun) -> None:
    found = tiny.judge(tiny.responses())
    assert found.overall.stock_verdict == "exact"
    assert found.overall.mismatches == 0
    assert found.overall.self_exact is True
    assert found.arms["stock"].ar_identical == found.arms["stock"].responses == 3 * 5 * 3
    assert found.overall.margin is not None
    assert 0.0 < found.overall.margin.value < 1e-2  # float32: far below any real gap
    assert found.overall.scorer["implementation"] == "transformers.LlamaForCausalLM"


def test_one_wrong_token_in_one_response_is_violated(tiny: TinyRun) -> None:
    responses = tiny.responses()
    responses[4] = changed(responses[4], 5, (responses[4].token_ids[5] + 1) % 256)
    found = tiny.judge(responses)
    first = found.overall.divergences[0]
    assert found.overall.stock_verdict == found.arms["stock"].stock_verdict == "violated"
    assert found.arms["ar"].stock_verdict == "exact"
    assert (first.arm, first.prompt_id, first.position) == ("stock", "own/1", 5)
    assert first.stock_token_id == tiny.responses()[4].token_ids[5]


def test_a_token_outside_of_the_vocabulary_is_a_fault_and_no_crash(tiny: TinyRun) -> None:
    responses = tiny.responses()
    responses[4] = changed(responses[4], 5, 10**6)
    found = tiny.judge(responses)
    assert found.overall.stock_verdict == "violated"
    assert [fault.position for fault in found.overall.stop_faults] == [5]


def test_each_distinct_sequence_is_forced_once(tiny: TinyRun) -> None:
    scorer = HashStock(vocab=tiny.stock.vocab_size)
    responses = tiny.responses()
    run_oracle(
        tiny.job,
        tiny.prompts,
        responses,
        CALIBRATION,
        tiny.tokenizer,
        SilentReporter(),
        tiny.stock._replace(scorer=scorer),
    )
    own = {line.token_ids for line in tiny.prompts}
    forced = [call for call in scorer.calls if call[0] in own]
    assert len(responses) == 90
    assert len(forced) == 3
    assert all(rows is None for _, _, rows in forced)


def test_failed_responses_are_passed_over(tiny: TinyRun) -> None:
    found = tiny.judge([*tiny.responses(), failed("stock", "own/1")])
    assert found.overall.stock_verdict == "exact"


def test_the_calibration_must_be_disjoint_from_the_run(tiny: TinyRun) -> None:
    own = prompts(("name a colour",), "held-out")
    with pytest.raises(InvalidRun, match="held-out/0 is prompt own/1 of the run"):
        tiny.judge(tiny.responses(), own)


def test_only_as_many_calibration_prompts_are_used_as_the_plan_says(tiny: TinyRun) -> None:
    found = tiny.judge(tiny.responses(), CALIBRATION)
    assert len(CALIBRATION) == 4
    assert found.overall.margin is not None
    assert found.overall.margin.prompts == 3


def test_no_calibration_prompt_makes_the_run_invalid(tiny: TinyRun) -> None:
    with pytest.raises(InvalidRun, match="no calibration prompt is left"):
        tiny.judge(tiny.responses(), ())


def test_a_calibration_prompt_that_does_not_fit_is_named(tiny: TinyRun) -> None:
    with pytest.raises(InvalidRun, match=r"held-out/0 \(\d+ tokens\) does not fit"):
        tiny.judge(tiny.responses(), prompts(("x" * 120,), "held-out"))


def test_a_response_to_no_prompt_of_the_run_is_refused(tiny: TinyRun) -> None:
    stray = msgspec.structs.replace(tiny.responses()[0], prompt_id="own/99")
    with pytest.raises(DataError, match="own/99"):
        tiny.judge([stray])


def test_a_scorer_that_is_not_there_names_the_plan_field(tiny: TinyRun) -> None:
    oracle = msgspec.structs.replace(tiny.job.plan.oracle, scorer="harness.backends.none:open")
    job = msgspec.structs.replace(tiny.job, plan=msgspec.structs.replace(tiny.job.plan, oracle=oracle))
    with pytest.raises(UsageError, match=r"oracle\.scorer"):
        open_stock(job)


def test_the_tiny_run_is_worth_judging(tiny: TinyRun) -> None:
    ids = {one.token_ids for one in tiny.responses()}
    assert len(ids) == 3
    assert all(len(sequence) == MAX_TOKENS for sequence in ids)
    assert all(len(set(sequence)) > 3 for sequence in ids)


def test_a_target_that_was_found_already_is_not_read_again(tiny: TinyRun) -> None:
    # Its weights would be hashed a second and a third time, which takes minutes on a large model.
    model = resolve_model(tiny.job.deployment.target)
    stock = open_stock(tiny.job, dataclasses.replace(model, sha256="known"))
    assert stock.scorer.describe()["weights_sha256"] == "known"
