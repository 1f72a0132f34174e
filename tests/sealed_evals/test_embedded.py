from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from harness.plan import SetSpec
from sealed_evals.load import load_set, pinned_set
from sealed_evals.reader import read_rows
from tests.sealed_evals import samples

CATEGORIES = {"math", "code", "chat", "summarisation", "translation", "extraction"}


@pytest.fixture(autouse=True)
def _no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECPILOT_EVALS_DIR", raising=False)


def test_the_embedded_set_needs_nothing_but_the_package() -> None:
    whole = pinned_set(samples.entry("embedded"), None)

    assert whole.source == "embedded"
    assert whole.licence == "Apache-2.0"
    assert whole.rows == len(whole.prompts) == 78


def test_it_has_thirteen_prompts_in_each_of_six_categories() -> None:
    whole = pinned_set(samples.entry("embedded"), None)

    assert Counter(prompt.category for prompt in whole.prompts) == dict.fromkeys(CATEGORIES, 13)
    assert all(prompt.prompt_id.startswith(f"embedded/{prompt.category}-") for prompt in whole.prompts)


def test_a_draw_of_twelve_has_two_prompts_of_each_category() -> None:
    for seed in range(10):
        drawn = load_set(SetSpec(name="embedded", count=12), evals_dir=None, seed=seed)
        assert Counter(prompt.category for prompt in drawn.prompts) == dict.fromkeys(CATEGORIES, 2)


def test_its_prompts_are_natural_in_length_and_some_are_long() -> None:
    whole = pinned_set(samples.entry("embedded"), None)
    words = {prompt.prompt_id: len(prompt.turns[0].split()) for prompt in whole.prompts}

    assert min(words.values()) >= 15
    assert max(words.values()) <= 320  # fits a context of 1,024 tokens with room for the output
    assert sum(count >= 200 for count in words.values()) >= 7
    assert sum(len(prompt.turns) > 1 for prompt in whole.prompts) >= 3


def test_no_two_of_its_prompts_share_eight_words_in_a_row() -> None:
    seen: dict[tuple[str, ...], str] = {}
    for prompt in pinned_set(samples.entry("embedded"), None).prompts:
        words = re.findall(r"\w+", " ".join(prompt.turns).casefold())
        for start in range(len(words) - 7):
            owner = seen.setdefault(tuple(words[start : start + 8]), prompt.prompt_id)
            assert owner == prompt.prompt_id


@samples.needs_original_files
def test_none_of_its_prompts_is_taken_from_a_public_set() -> None:
    own = _shingles(samples.embedded().decode())
    for name in ("gsm8k/test.jsonl", "math500/test.jsonl", "mt_bench/question.jsonl", "mbpp/mbpp.jsonl"):
        for row in read_rows((samples.originals() / name).read_bytes(), name):
            assert not own & _shingles(json.dumps(row.value, ensure_ascii=False)), name
    for value in samples.human_eval_rows():
        assert not own & _shingles(json.dumps(value, ensure_ascii=False))


def _shingles(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.replace("\\n", " ").casefold())
    return {tuple(words[start : start + 8]) for start in range(len(words) - 7)}
