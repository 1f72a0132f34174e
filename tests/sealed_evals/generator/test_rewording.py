from __future__ import annotations

import pytest

from harness.records import PromptSet
from sealed_evals.formats import boxed, python_fence
from sealed_evals.generator.rewording import Known, grams, known, masked
from tests.sealed_evals import samples

ROW = (
    "Ada has 12 red marbles and gives a third of them to her brother, who already has 7 of his own. "
    "How many marbles does the brother have now?"
)
OTHER = "Compose a short poem on the first snow of the year, in the voice of a tired postman."


def public(*texts: str) -> Known:
    prompts = tuple(samples.prompt(number, text=text) for number, text in enumerate(texts))
    whole = PromptSet(
        name="public",
        split="public",
        source="file",
        licence="MIT",
        raw_sha256="",
        prompts_sha256="",
        merkle_root="",
        rows=len(prompts),
        prompts=prompts,
    )
    return known([whole])


REWORDINGS = {
    "the row itself": ROW,
    "other numbers": ROW.replace("12", "90").replace("7", "1034"),
    "other case and punctuation": ROW.upper().replace(",", ";"),
    "a longer prompt around it": f"Here is a riddle for you, think hard. {ROW} Explain.",
    "other names here and there": ROW.replace("Ada", "Bo").replace("brother", "cousin", 1),
    "half of it": ROW.partition(",")[0] + ". What is left?",
}


@pytest.mark.parametrize("text", REWORDINGS.values(), ids=REWORDINGS)
def test_a_rewording_is_found(text: str) -> None:
    assert public(OTHER, ROW).reworded((text,))


@pytest.mark.parametrize(
    "text",
    [
        OTHER,
        "How many marbles does it take to fill a jar of glass?",
        "Ada gives a third of her bread to the birds.",
        "",
    ],
)
def test_what_only_shares_common_words_is_none(text: str) -> None:
    assert not public(ROW).reworded((text,))


def test_every_turn_counts() -> None:
    assert public(ROW).reworded((OTHER, ROW))


def test_the_wording_of_a_format_is_no_rewording() -> None:
    rows = public(boxed("What is one plus one?"), python_fence("def add(a, b):"))
    assert not rows.reworded((boxed("Name the largest prime below the hundredth square."),))
    assert not rows.reworded((python_fence("def largest(values):"),))
    assert rows.reworded((boxed("What is one plus one?"),))


def test_the_share_is_that_of_the_one_row_with_most() -> None:
    found = public("one two three four five", "three four five six seven")
    assert found.shared(("one two three four five six seven",)) == 0.5  # 2 of its 4 runs, in either row
    assert found.shared(("nothing of the kind here",)) == 0.0
    long = " ".join("abcdefgh")
    assert public(long).shared((f"{long} {' '.join('ijklmnopqrstuvwxyz')}",)) == 1.0


def test_numbers_are_one_word() -> None:
    assert masked("In 1987, x2 and 3.5") == ["in", "0", "x0", "and", "0", "0"]
    assert list(grams(["a", "b", "c"], 2)) == [("a", "b"), ("b", "c")]


def test_sets_are_named_in_order() -> None:
    one = public(ROW)
    assert one.names == ("public",)
