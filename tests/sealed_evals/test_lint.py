from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import Any

import pytest

from harness.errors import DataError
from sealed_evals.catalogue import own_layout
from sealed_evals.lint import lint
from sealed_evals.lint_rules import Finding
from sealed_evals.sources import find
from tests.sealed_evals import samples

OWN = own_layout("prompt")
CLEAN = [
    {"prompt": "How many bolts of cloth does a tailor need for three coats?", "answer": "7"},
    {"prompt": "Write a function that returns the {name} of a user, or None.", "answer": "def name(): ..."},
    {
        "prompt": "Explain \\frac{{a}}{b} and a[your_index] to a beginner, please.",
        "answer": "It is a fraction.",
    },
    {"prompt": "Was ist der Unterschied zwischen Grüßen und Küssen?", "category": "chat"},
]


def found(*rows: Mapping[str, Any]) -> list[tuple[str, str, int | None]]:
    return brief(lint(samples.lines(*rows), OWN, "file"))


def brief(findings: tuple[Finding, ...]) -> list[tuple[str, str, int | None]]:
    return [(finding.severity, finding.rule, finding.row) for finding in findings]


def test_a_clean_file_has_no_findings() -> None:
    assert found(*CLEAN) == []


@pytest.mark.parametrize(
    ("data", "rule", "row"),
    [
        pytest.param(b'\xef\xbb\xbf{"prompt":"a b"}\n', "bom", 1, id="bom"),
        pytest.param(b'{"prompt":"a b"}\r\n', "crlf-line-end", 1, id="crlf"),
        pytest.param(b'{"prompt":"a b","x":NaN}\n', "non-finite", 1, id="nan"),
        pytest.param(b'{"prompt":"a b","prompt":"c"}\n', "duplicate-key", 1, id="duplicate key"),
        pytest.param(b'{"prompt":"a b","x":"\\ud800"}\n', "lone-surrogate", 1, id="lone surrogate"),
        pytest.param(b'{"prompt":"a b"}\n\n', "blank-line", 2, id="blank line"),
        pytest.param(b'{"prompt":"a \xff"}\n', "invalid-utf8", 1, id="latin-1"),
        pytest.param(b'{"prompt":\n', "invalid-json", 1, id="cut off"),
        pytest.param(b"[1]", "not-an-object", 1, id="number"),
        pytest.param(b"", "empty-file", None, id="empty"),
        pytest.param(b'{"text":"a b"}\n', "no-prompt", 1, id="other field"),
        pytest.param(b'{"prompt":" "}\n', "no-prompt", 1, id="empty prompt"),
    ],
)
def test_a_fault_of_the_file_is_an_error(data: bytes, rule: str, row: int | None) -> None:
    assert brief(lint(data, OWN, "file")) == [("error", rule, row)]


def test_all_faults_are_found_and_errors_come_first() -> None:
    data = b'{"prompt":"same"}\n{"prompt":"same"}\n{"prompt":NaN}\n{"prompt":"TODO"}\n'

    assert brief(lint(data, OWN, "file")) == [
        ("error", "no-prompt", 3),
        ("error", "non-finite", 3),
        ("error", "placeholder", 4),
        ("warning", "duplicate-prompt", 2),
    ]


@pytest.mark.parametrize(
    ("first", "second", "rule"),
    [
        pytest.param("Sort a list.", "Sort a list.", "duplicate-prompt", id="identical"),
        pytest.param("Sort a list.", "sort  a\nLIST.", "near-duplicate", id="case and white space"),
        pytest.param("Caf\u00e9 \ufb01ne?", "Caf\u00e9 fine?", "near-duplicate", id="ligature"),
        pytest.param("Sort x\u00b2.", "Sort x2.", "near-duplicate", id="superscript"),
        pytest.param("Sort 10\u00a0lists.", "Sort 10 lists.", "near-duplicate", id="no-break space"),
        pytest.param("Sort a list.", "Sort a list!", None, id="different"),
    ],
)
def test_prompts_that_count_twice_are_a_warning(first: str, second: str, rule: str | None) -> None:
    expected = [] if rule is None else [("warning", rule, 2)]

    assert found({"prompt": first}, {"prompt": second}) == expected


def test_conversations_that_begin_alike_are_no_duplicates() -> None:
    assert found({"prompt": ["Hello there.", "Go on."]}, {"prompt": ["Hello there.", "Stop it."]}) == []


@pytest.mark.parametrize(
    "text",
    [
        "TODO",
        "tbd.",
        "N/A",
        "null",
        "...",
        "xxx",
        "{{question}}",
        "{prompt}",
        "<prompt here>",
        "[question 3]",
        "placeholder",
        "Lorem ipsum dolor sit amet, consectetur.",
        "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE",
        "Translate this: [insert text here]",
        "Answer: your question here",
        "Sum up: <your text>",
    ],
)
def test_a_placeholder_is_an_error(text: str) -> None:
    assert found({"prompt": text}) == [("error", "placeholder", 1)]


@pytest.mark.parametrize(
    "text",
    [
        "What is a placeholder in a form?",
        "Write a todo list for my weekend.",
        "Evaluate $\\frac{{3}}{4} + [x]$.",
        "Insert a node into [your choice of] linked list.",
        "def f(x: list[int]) -> dict[str, int]: ...",
        "What did the text <b>test</b> show?",
        "Write a function to test null.",
    ],
)
def test_a_prompt_that_speaks_of_placeholders_is_none(text: str) -> None:
    assert found({"prompt": text}) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        pytest.param("one\r\ntwo", "crlf-in-text", id="crlf in the text"),
        pytest.param("one\u2028two", "line-separator", id="U+2028"),
        pytest.param("one\u2029two", "line-separator", id="U+2029"),
        pytest.param("cafe\u0301 open", "not-nfc", id="decomposed accent"),
        pytest.param("10 \u2126 resistor", "not-nfc", id="ohm sign"),
    ],
)
def test_characters_that_tools_change_are_a_warning(text: str, rule: str) -> None:
    assert found({"prompt": text}) == [("warning", rule, 1)]


def test_an_escaped_line_separator_breaks_no_tool() -> None:
    assert lint(b'{"prompt":"one\\u2028two"}\n', OWN, "file") == ()


SOLUTION = "She sells 9 eggs. She makes 9 * 2 = 18 dollars a day.\n#### 18"


@pytest.mark.parametrize(
    ("answer", "severity"),
    [
        pytest.param(SOLUTION, "error", id="whole solution"),
        pytest.param(SOLUTION.upper().replace(" ", "\n"), "error", id="case and white space"),
        pytest.param(SOLUTION.replace("2 = ", "2 = <<9*2=18>>"), "error", id="calculator note"),
        pytest.param([SOLUTION, "other"], "error", id="one of two references"),
        pytest.param("She sells 9 eggs.", "warning", id="a sentence of it"),
        pytest.param("18", None, id="short answer"),
        pytest.param("18 dollars", None, id="answer of two words"),
        pytest.param("She sells 8 eggs. She makes 16 dollars a day.", None, id="other solution"),
        pytest.param("", None, id="empty answer"),
        pytest.param(None, None, id="no answer"),
    ],
)
def test_a_solution_inside_its_own_prompt_is_found(answer: object, severity: str | None) -> None:
    prompt = f"Q: How much does she make?\nA: {SOLUTION}\n\nQ: How much does she make in a week?"
    expected = [] if severity is None else [(severity, "answer-leak", 1)]

    assert found({"prompt": prompt, "answer": answer}) == expected


def test_the_solution_of_another_row_is_no_leak() -> None:
    assert found({"prompt": SOLUTION, "answer": "unknown"}, {"prompt": "Why?", "answer": SOLUTION}) == []


def test_a_prompt_of_another_order_of_length_is_a_warning() -> None:
    usual = [{"prompt": f"Question {number}: what is {number} times {number}?"} for number in range(11)]
    words = " ".join(f"word{number}" for number in range(200))

    assert found(*usual, {"prompt": words}) == [("warning", "length-outlier", 12)]
    assert found(*usual, {"prompt": "?a"}) == []
    assert found(*usual[:8], {"prompt": words}) == [], "nine prompts have no usual length"
    long = [{"prompt": words.replace("word", f"w{number}-")} for number in range(11)]
    assert found(*long, {"prompt": "Hi"}) == [("warning", "length-outlier", 12)]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a" * 300, id="one letter"),
        pytest.param("the quick brown fox jumps over it " * 12, id="one sentence"),
        pytest.param(
            2 * " ".join(f"{n * n:x}{chr(97 + n % 26)}" for n in range(301, 371)), id="one text twice"
        ),
        pytest.param(" ".join(f"{n} alpha beta gamma delta epsilon" for n in range(12)), id="one phrase"),
    ],
)
def test_filler_is_a_warning(text: str) -> None:
    assert found({"prompt": text}) == [("warning", "degenerate", 1)]


def test_a_short_repetition_is_no_filler() -> None:
    assert found({"prompt": "What does ha ha ha ha ha ha ha mean?"}) == []
    assert found({"prompt": "a" * 199}) == []


def test_gzip_is_linted_like_the_plain_file_and_damaged_gzip_is_refused() -> None:
    data = gzip.compress(samples.lines({"prompt": "TODO"}))

    assert brief(lint(data, OWN, "file")) == [("error", "placeholder", 1)]
    with pytest.raises(DataError, match="damaged gzip"):
        lint(data[:-4], OWN, "file")


def test_rows_outside_the_selection_are_not_linted() -> None:
    layout = samples.entry("mbpp").layout
    data = samples.lines({"task_id": 5, "prompt": "TODO"}, {"task_id": 11, "prompt": "Sort a list."})

    assert lint(data, layout, "file") == ()


@pytest.mark.parametrize("name", ["humaneval", "embedded"])
def test_the_sets_that_are_always_here_have_no_findings(name: str) -> None:
    found = find(samples.entry(name), None, None, hub=False)

    assert lint(found.data, found.layout, name) == ()


@samples.needs_original_files
@pytest.mark.parametrize("name", samples.PUBLIC_SETS)
def test_the_public_sets_have_no_findings_but_mbpps_identical_pair(name: str) -> None:
    found = find(samples.entry(name), samples.originals(), None, hub=False)

    expected = [("warning", "duplicate-prompt", 88)] if name == "mbpp" else []
    assert brief(lint(found.data, found.layout, name)) == expected
