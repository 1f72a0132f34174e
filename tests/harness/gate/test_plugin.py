"""`assert_lossless`: an engine that decodes as stock does passes; one that leaves it fails and says where."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.lossless import StockJudge, faults, judge_engine, open_judge
from harness.pytest_plugin import AssertLossless
from tests.harness.tiny import write_llama

PROMPTS = ("what is 2+2?", "name a colour")
MAX = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("lossless"), seed=3)


@pytest.fixture(scope="module")
def judge(model: Path) -> StockJudge:
    return open_judge(model, max_tokens=MAX)


class Greedy:
    """Stock's own decoding; then what a broken engine would make of it."""

    def __init__(self, judge: StockJudge, flip: int | None = None, drop: int = 0) -> None:
        self.judge, self.flip, self.drop = judge, flip, drop

    def __call__(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        ids: list[int] = []
        for token, row in islice(self.judge.stock.scorer.greedy(prompt), max_tokens):
            worst = int(row.argmin())
            ids.append(worst if len(ids) == self.flip else token)
            if ids[-1] in self.judge.stock.eos_token_ids:
                break
        return ids[: len(ids) - self.drop]


def test_an_engine_that_decodes_as_stock_does_is_lossless(judge: StockJudge) -> None:
    found = judge_engine(Greedy(judge), PROMPTS, judge)
    assert found.overall.stock_verdict in ("exact", "near-tie")
    assert faults(found) == ()


def test_prompts_may_be_ids(judge: StockJudge) -> None:
    ids = judge.tokenizer.encode_text("hello")
    assert faults(judge_engine(Greedy(judge), [ids], judge)) == ()


@pytest.mark.parametrize(
    ("engine", "words"), [({"flip": 4}, "position 4"), ({"drop": 1}, "finish reason 'length' after")]
)
def test_a_wrong_token_and_a_token_too_few_are_named(
    judge: StockJudge, engine: dict[str, int], words: str
) -> None:
    told = faults(judge_engine(Greedy(judge, **engine), PROMPTS, judge))
    assert any(words in text for text in told)
    assert told[-1].startswith("Violated")


def test_no_prompt_or_no_token_is_no_pass(judge: StockJudge) -> None:
    with pytest.raises(UsageError, match="`prompts` is empty"):
        judge_engine(Greedy(judge), [], judge)
    with pytest.raises(UsageError, match="emitted nothing for prompt 0"):
        judge_engine(lambda prompt, most: [], PROMPTS, judge)


def test_the_fixture_fails_a_test_and_says_why(judge: StockJudge, model: Path) -> None:
    check = AssertLossless(str(model))
    assert check(Greedy(judge), PROMPTS, max_tokens=MAX).overall.tokens > 0
    with pytest.raises(pytest.fail.Exception, match=r"(?s)not lossless:.*prompt 0.*position 2"):
        check(Greedy(judge, flip=2), PROMPTS, max_tokens=MAX)
    with pytest.raises(pytest.UsageError, match="--lossless-model"):
        AssertLossless(None)(Greedy(judge), PROMPTS)
