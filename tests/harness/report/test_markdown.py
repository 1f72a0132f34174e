"""The Markdown face, read back by a Markdown parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from harness.report.markdown import code, escape, paragraph, render_markdown
from harness.results import Report
from tests.harness.report import build, pieces

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def tokens(text: str) -> Iterator[Token]:
    for token in PARSER.parse(text):
        yield token
        yield from token.children or ()


def kinds(text: str) -> set[str]:
    return {token.type for token in tokens(text)}


def test_the_sections_stand_in_the_order_of_a_reader_in_a_hurry() -> None:
    assert re.findall("^## (.*)$", render_markdown(build.report()), re.MULTILINE) == [
        "Arms",
        "Losslessness",
        "Per category",
        "Acceptance",
        "Latency",
        "Audits",
        "Warnings",
        "Evaluation sets",
        "How it was run",
        "Differences between arms",
        "Environment",
        "Telemetry",
        "Files",
        "Check it yourself",
    ]


def test_an_invalid_run_gives_its_reasons_first_and_no_speed_anywhere() -> None:
    text = render_markdown(build.invalid())
    assert text.index("**INVALID RUN.**") < text.index("foreign load 62 %") < text.index("## Arms")
    assert not re.search(r"\d\.\d\dx", text)
    assert "tokens/s" not in text
    assert text.count("No speed is given: the run is invalid.") == 2  # categories, latency


def test_a_hostile_reason_stays_one_item_of_the_banner() -> None:
    text = render_markdown(build.report(status="invalid", reasons=(pieces.HOSTILE, "# second"), warnings=()))
    assert not {"link_open", "html_inline", "html_block", "em_open"} & kinds(text)
    assert sum(token.type == "list_item_open" for token in tokens(text)) == 2
    assert sum(token.type == "heading_open" for token in tokens(text)) == 17


def test_a_violated_run_shows_faults_and_at_most_twenty_divergences() -> None:
    text = render_markdown(build.violated())
    assert "Stops that the ids do not explain (2):" in text
    assert "First divergences (the first 20 of 25):" in text
    assert text.count("284 ' the'") == 20
    assert "humaneval/19" in text
    assert "humaneval/20" not in text


def test_a_sampled_run_shows_the_test_of_its_distribution() -> None:
    text = render_markdown(build.distribution())
    assert "z = 0.876 over 6000 tokens; p = 0.38, level 0.01: passed" in text
    assert "one-sided exact" not in text


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<!-- comment -->",
        "a | b",
        "`code`",
        "*a* **b** _c_ __d__ ~~e~~",
        "[x](https://evil.example)",
        "![x](https://evil.example/y.png)",
        "[x][y]",
        "<https://evil.example>",
        "&lt;b&gt;",
        "\\<b>\\",
        "line\n\n# head",
        "# head",
        "- item",
        "+ item",
        "1. item",
        "2) item",
        "> quoted",
        "===",
        "---",
    ],
)
@pytest.mark.parametrize("place", ["{}", "- {}", "> - {}"], ids=["paragraph", "item", "quoted item"])
def test_foreign_text_comes_out_of_the_parser_as_it_went_in(text: str, place: str) -> None:
    found = list(tokens(place.format(paragraph(text))))
    shown = "".join(token.content for token in found if token.type in ("text", "text_special"))
    assert shown == " ".join(text.split())
    assert {token.type for token in found} <= {
        "paragraph_open", "paragraph_close", "inline", "text", "text_special",
        "bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close",
        "blockquote_open", "blockquote_close",
    }  # fmt: skip
    assert sum(token.type == "list_item_open" for token in found) == place.count("-")


@pytest.mark.parametrize(
    "text", ["https://evil.example", "HTTP://evil.example", "www.evil.example", "a@evil.example", "$x$"]
)
def test_nothing_that_hosts_turn_into_links_or_formulas_is_left(text: str) -> None:
    assert not re.search(r"(?i)https?:|www\.|(?<!\\)@|(?<!\\)\$", escape(text))


@pytest.mark.parametrize("text", ["a", "a`b", "``", "a```b` c", "`"])
def test_a_code_span_holds_its_own_backticks(text: str) -> None:
    inner = [token for token in tokens(code(text)) if token.type == "code_inline"]
    assert [token.content for token in inner] == [text]


def test_underscores_inside_a_word_stay_readable() -> None:
    assert escape("num_draft_tokens") == "num_draft_tokens"


def test_a_hostile_report_has_the_structure_of_a_harmless_one() -> None:
    """No element but those the report itself makes, and every row with its head's cells."""
    hostile, harmless = render_markdown(build.hostile()), render_markdown(build.violated())
    assert kinds(hostile) - kinds(harmless) <= {"text_special", "blockquote_open", "blockquote_close"} | {
        "strong_open",
        "strong_close",
    }  # of the smoke banner
    assert "\x1b" not in hostile
    assert [token.content for token in tokens(hostile) if token.type == "strong_open"].count("") == 1
    heads = [token for token in tokens(hostile) if token.type == "heading_open"]
    assert len(heads) == 18
    cells: list[int] = []
    for token in tokens(hostile):
        if token.type == "tr_open":
            cells.append(0)
        elif token.type in ("th_open", "td_open"):
            cells[-1] += 1
    raw = [re.sub(r"\\.", "", line).count("|") - 1 for line in hostile.splitlines() if line.startswith("|")]
    assert cells == [count for line, count in zip(_lines(hostile), raw, strict=True) if "|--" not in line]


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize(
    "make",
    [build.report, build.invalid, build.violated, build.near_tie, build.distribution, build.hostile],
)
def test_equal_reports_give_equal_text_that_ends_in_one_line_end(make: Callable[[], Report]) -> None:
    text = render_markdown(make())
    assert text == render_markdown(make())
    assert text.endswith("\n")
    assert "\n\n\n" not in text


def test_a_report_without_anything_optional_is_still_whole() -> None:
    bare = build.report(
        losslessness=None, audits=(), warnings=(), timeline=(), telemetry={}, environment={}, files={}
    )
    text = render_markdown(bare)
    assert "Not judged: the oracle did not run." in text
    assert "## Files\n\nNone." in text
    assert "## Telemetry\n\nNone." in text
