from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from harness.errors import DataError
from harness.records import Prompt
from sealed_evals.catalogue import RowLayout, Selection, own_layout
from sealed_evals.formats import extract, prompts_digest, turns_of
from sealed_evals.reader import Row, read_rows
from tests.sealed_evals import samples


def row(value: dict[str, Any], number: int = 1) -> Row:
    return Row(number, json.dumps(value).encode(), value)


def turns(value: dict[str, Any], layout: RowLayout) -> tuple[str, ...]:
    return turns_of(row(value), layout, "file")


def prompts(data: bytes, layout: RowLayout) -> list[Prompt]:
    return extract(read_rows(data, "file"), layout, name="mine", category="general", where="file")


def test_math_questions_are_asked_in_the_wording_of_the_field() -> None:
    layout = samples.entry("gsm8k").layout

    assert turns({"question": "What is {2} + 2?"}, layout) == (
        "What is {2} + 2?\nPlease reason step by step, and put your final answer within \\boxed{}.",
    )


def test_humaneval_stands_raw_in_a_python_fence() -> None:
    layout = samples.entry("humaneval").layout

    assert turns({"prompt": "def f():\n    {}\n"}, layout) == (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        "```python\ndef f():\n    {}\n\n```",
    )


def test_mbpp_is_asked_as_it_stands() -> None:
    assert turns({"prompt": " Write it. \n"}, samples.entry("mbpp").layout) == (" Write it. \n",)


def test_mt_bench_keeps_its_turns() -> None:
    assert turns({"turns": ["First.", "Then."]}, samples.entry("mt_bench").layout) == ("First.", "Then.")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(" one\u2028prompt ", (" one\u2028prompt ",), id="string"),
        pytest.param(["one", "two"], ("one", "two"), id="list of turns"),
        pytest.param(
            [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "answer"},
                {"role": "user", "content": "two"},
            ],
            ("one", "two"),
            id="messages",
        ),
    ],
)
def test_a_field_of_the_users_own_is_a_string_turns_or_messages(
    value: Any, expected: tuple[str, ...]
) -> None:
    assert turns({"ask": value}, own_layout("ask")) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(3, "is a number, wanted a string", id="number"),
        pytest.param(None, "is null, wanted a string", id="null"),
        pytest.param({"text": "a"}, "is an object, wanted a string", id="object"),
        pytest.param("", "holds no text", id="empty string"),
        pytest.param(" \n\u2028", "holds no text", id="white space"),
        pytest.param([], "holds no text", id="no turns"),
        pytest.param(["a", " "], "holds no text", id="empty turn"),
        pytest.param(["a", 1], "holds a number where a string is wanted", id="mixed turns"),
        pytest.param(
            ["a", {"role": "user", "content": "b"}], "mixes turns and messages", id="turn and message"
        ),
        pytest.param([{"role": "user"}], "lacks `role` or `content`", id="message without content"),
        pytest.param([{"role": "system", "content": "a"}], "no message with the role 'user'", id="no user"),
        pytest.param(
            [{"role": "user", "content": [{"type": "image"}]}], "holds a list where a string", id="parts"
        ),
    ],
)
def test_a_field_that_is_no_prompt_is_refused_with_row_and_fields(value: Any, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        turns_of(row({"id": 7, "ask": value}, 12), own_layout("ask"), "mine.jsonl")

    assert str(caught.value).startswith("mine.jsonl row 12: field 'ask' ")
    assert reason in str(caught.value)
    assert str(caught.value).endswith("(it has: id, ask)")


def test_a_missing_field_names_the_row_and_the_fields_that_there_are() -> None:
    with pytest.raises(DataError) as caught:
        prompts(samples.lines({"ask": "a"}, {"question": "b", "id": 2}), own_layout("ask"))

    assert str(caught.value).startswith("file row 2: no field 'ask' (it has: question, id)")


def test_rows_are_numbered_from_one_and_may_name_a_category() -> None:
    data = samples.lines({"prompt": "a", "category": "law"}, {"prompt": "b"})

    first, second = prompts(data, own_layout("prompt"))

    assert (first.prompt_id, first.category) == ("mine/1", "law")
    assert (second.prompt_id, second.category) == ("mine/2", "general")
    assert first.row_sha256 == hashlib.sha256(data.split(b"\n")[0]).hexdigest()


def test_a_category_that_is_no_word_is_refused() -> None:
    with pytest.raises(DataError, match="file row 1: field 'category' is no category"):
        prompts(samples.lines({"prompt": "a", "category": 3}), own_layout("prompt"))


@pytest.mark.parametrize("key", [None, 1.5, True, "", ["a"]])
def test_a_key_that_identifies_nothing_is_refused(key: object) -> None:
    layout = RowLayout(field="prompt", format="plain", key="id")

    with pytest.raises(DataError, match="file row 1: no string or integer key in 'id'"):
        prompts(samples.lines({"prompt": "a", "id": key}), layout)


def test_two_rows_with_one_key_are_refused() -> None:
    layout = RowLayout(field="prompt", format="plain", key="id")

    with pytest.raises(DataError, match="file row 3: shares the key '7' in 'id' with row 1"):
        prompts(
            samples.lines({"prompt": "a", "id": 7}, {"prompt": "b", "id": 8}, {"prompt": "c", "id": "7"}),
            layout,
        )


def test_a_selection_takes_the_rows_between_its_ends_both_included() -> None:
    layout = RowLayout(field="prompt", format="plain", key="id", select=Selection(field="id", low=2, high=4))
    data = samples.lines(*({"prompt": f"p{number}", "id": number} for number in range(7)))

    assert [prompt.prompt_id for prompt in prompts(data, layout)] == ["mine/2", "mine/3", "mine/4"]


def test_a_selection_that_leaves_nothing_is_an_empty_set() -> None:
    layout = RowLayout(field="prompt", format="plain", select=Selection(field="id", low=2, high=4))

    with pytest.raises(DataError, match="holds no row of the set 'mine'"):
        prompts(samples.lines({"prompt": "a", "id": 9}), layout)


@pytest.mark.parametrize("fields", [{}, {"id": True}, {"id": "3"}])
def test_a_row_that_cannot_be_selected_is_named(fields: dict[str, Any]) -> None:
    layout = RowLayout(field="prompt", format="plain", select=Selection(field="id", low=0, high=4))

    with pytest.raises(DataError, match=r"file row 1: no integer field 'id' \(it has: prompt"):
        prompts(samples.lines({"prompt": "a", **fields}), layout)


def test_the_digest_is_that_of_the_turns_in_compact_json() -> None:
    sample = [samples.prompt(1, text='caf\u00e9 \u2028 \n\t"\\'), samples.prompt(2)]
    plain = json.dumps([p.turns for p in sample], ensure_ascii=False, separators=(",", ":"))

    assert prompts_digest(sample) == hashlib.sha256(plain.encode()).hexdigest()


def test_the_digest_tells_turns_order_and_every_space() -> None:
    a, b = samples.prompt(1, text="a"), samples.prompt(2, text="b")
    digests = [
        prompts_digest(some)
        for some in ([a, b], [b, a], [a], [samples.prompt(1, text="a "), b], [samples.prompt(1, text="ab")])
    ]

    assert len(set(digests)) == len(digests)
