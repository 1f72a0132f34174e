from __future__ import annotations

import ast
from random import Random

import pytest

from reference_mechanisms.drafters.training.prompts import (
    described,
    forbidden_runs,
    formatted,
    overlapping,
    stub,
)

LONG = "A farmer has seventeen sheep and sells nine of them to his neighbour on Monday"


def test_mathematics_is_asked_as_the_benchmarks_ask_it() -> None:
    assert formatted("gsm8k-train (MIT)", "1+1?") == (
        "1+1?\nPlease reason step by step, and put your final answer within \\boxed{}."
    )
    assert formatted("dolly", "1+1?") == "1+1?"


@pytest.mark.parametrize(
    ("turn", "task"),
    [
        ("Write a function to reverse a list. Then test it.", "reverse a list"),
        (
            "Write a python function to find the second largest number\nand so on",
            "find the second largest number",
        ),
        ("Write a poem about functions", None),
        ("Write a function to go", None),
    ],
)
def test_the_task_of_a_code_turn_is_its_first_sentence(turn: str, task: str | None) -> None:
    assert described(turn) == task


@pytest.mark.parametrize("seed", range(40))
def test_a_stub_is_python_that_lacks_a_body(seed: int) -> None:
    text = stub("return the 3 largest values of a list", Random(seed))  # noqa: S311 - test data
    assert text.startswith("Write a solution to the following problem")
    code = text.split("```python\n")[1].removesuffix("\n```")
    function = ast.parse(code).body[-1]
    assert isinstance(function, ast.FunctionDef)
    assert len(function.body) == 1
    assert (ast.get_docstring(function) or "").startswith("Return the 3 largest values of a list.")


def test_eight_words_of_an_evaluation_prompt_are_found_in_any_spelling() -> None:
    forbidden = forbidden_runs({"set": [LONG, "Something else entirely"]})
    texts = [
        "Once: a FARMER has seventeen sheep, and sells nine...",
        "A farmer has seventeen sheep and sells ten",
        "no farmer at all",
    ]
    assert overlapping(texts, forbidden) == [0]


def test_what_a_format_puts_into_every_prompt_is_no_overlap() -> None:
    suffix = "Please reason step by step and put your final answer in a box"
    forbidden = forbidden_runs({"set": [f"Question {n} about topic {n * n}: {suffix}" for n in range(9)]})
    assert overlapping([f"Mine: {suffix}"], forbidden) == []
    assert overlapping([f"Ends with topic 4: {suffix}"], forbidden) == []  # nor with a few words in front
    alone = forbidden_runs({"set": [suffix]})
    assert overlapping([f"Mine: {suffix}"], alone) == [0]
