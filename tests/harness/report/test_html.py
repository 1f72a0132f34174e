"""The HTML page: self-contained, well formed, escaped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from harness.report import tables
from harness.report.html import render_html
from harness.results import Report
from tests.harness.report import build
from tests.harness.report.pages import rendered

VOID = {"meta", "br", "hr", "img", "input", "link"}
REPORTS = [build.report, build.invalid, build.violated, build.near_tie, build.distribution, build.hostile]


class Page(HTMLParser):
    """Elements, ids and visible text; a tag that closes nothing is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.sections: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)
        if self.open and self.open[-1] == "h2":
            self.sections.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.mark.parametrize("make", REPORTS)
def test_the_page_is_well_formed_and_needs_nothing_from_outside(make: Callable[[], Report]) -> None:
    text = rendered(make)
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>\n<html")
    assert not {"script", "link", "iframe", "img", "object", "embed", "base", "form"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    pointing = [value for name, value in page.attributes if name in ("href", "src", "xlink:href", "srcset")]
    assert all(value.startswith("#") for value in pointing)
    styles = re.findall(r"<style[^>]*>.*?</style>", text, re.DOTALL)
    assert styles
    assert not any("@import" in style or "http" in style or "url(" in style for style in styles)
    namespaces = [value for name, value in page.attributes if "http" in value and name != "aria-label"]
    assert set(namespaces) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


@pytest.mark.parametrize("make", REPORTS)
def test_ids_are_unique_and_every_reference_inside_the_page_is_met(make: Callable[[], Report]) -> None:
    text = rendered(make)
    page = Page(text)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    wanted = {value[1:] for name, value in page.attributes if name == "xlink:href"}
    wanted |= set(re.findall(r"url\(#([^)]*)\)", text))
    assert wanted <= set(ids)


def test_the_reader_in_a_hurry_meets_banner_statement_table_and_plots_in_this_order() -> None:
    report = build.report()
    text, found = rendered(build.report), report.losslessness
    assert found is not None
    places = [
        text.index(part)
        for part in (
            "<h1>reproduce-cpu</h1>",
            "<strong>Smoke run</strong>",
            '<p class="statement exact">Lossless in this smoke run',
            '<th scope="col">speedup over ar [95 %]</th>',
            "<svg",
            "<h2>Losslessness</h2>",
        )
    ]
    assert places == sorted(places)
    assert Page(text).sections == [
        "Plots", "Losslessness", "Speedup in detail", "Acceptance", "Latency", "Audits", "Warnings",
        "Evaluation sets", "How it was run", "Differences between arms", "Environment", "Telemetry", "Files",
        "Check it yourself",
    ]  # fmt: skip


def test_an_invalid_run_gives_its_reasons_at_the_top_and_no_speed_anywhere() -> None:
    text = rendered(build.invalid)
    words = Page(text).words
    assert text.index("INVALID RUN.</strong>") < text.index("foreign load 62 %") < text.index("<table>")
    assert not re.search(r"\d\.\d\dx", words)
    assert "tokens/s" not in words
    assert "No plot “Speedup over ar”: the run is invalid, so no speedup is shown." in words
    assert text.count("<svg") == 2  # acceptance is not a speed


def test_a_violated_run_is_red_and_its_speed_is_not_praised() -> None:
    text = rendered(build.violated)
    assert '<p class="statement violated">Violated: arm stock' in text
    assert '<td class="word bad">violated (4 near ties, 27 violations)</td>' in text
    assert '<td class="word">faster</td>' in text
    assert text.count('<td class="word good">faster</td>') == 1  # of replay, which is exact


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (build.near_tie, "0.5234 logits: 2 x the 99.9 % quantile (0.2617)"),
        (build.near_tie, "864 positions of 6 other prompts (one-token steps, 8-row steps)"),
        (build.near_tie, "2.1 %; median gap 2.345 logits"),
        (build.near_tie, "0 at 6000 positions, stock 3 at 864; p = 1, level 0.01: passed"),
        (build.near_tie, "error rate below 0.0005 per token at 95 % (3/N over 6000 distinct positions)"),
        (build.distribution, "z = 0.876 over 6000 tokens; p = 0.38, level 0.01: passed"),
        (build.violated, "Stops that the ids do not explain (2)"),
        (build.violated, "First divergences (the first 20 of 25)"),
        (build.report, "specpilot-harness run reproduce-cpu --out 'my reports/today'"),
        (build.report, "harness git_dirty yes"),
        (build.report, "cpu model Example 9000"),
        (build.report, "b2" * 32),
        (build.report, "responses.jsonl " + "17" * 32),
    ],
)
def test_the_evidence_is_on_the_page(make: Callable[[], Report], expected: str) -> None:
    assert expected in Page(rendered(make)).words


def test_hostile_text_adds_no_element_and_shows_as_text() -> None:
    text = rendered(build.hostile)
    page = Page(text)
    assert set(page.tags) <= set(Page(rendered(build.violated)).tags) | {"strong"}
    assert "<script" not in text
    assert "<script>alert(1)</script> | `tick` *bold*" in page.words
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_very_wide_table_scrolls_in_its_own_container() -> None:
    text = rendered(build.report)
    tables_alone = re.findall(r'(<div class="scroll" tabindex="0">\n)?<table( class="facts")?>', text)
    assert tables_alone
    assert all(scroll or facts for scroll, facts in tables_alone)


def test_equal_reports_give_equal_bytes_in_every_process(pytestconfig: pytest.Config) -> None:
    program = (
        "import hashlib\n"
        "from harness.report.html import render_html\n"
        "from tests.harness.report import build\n"
        "print(hashlib.sha256(render_html(build.hostile()).encode()).hexdigest())\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=pytestconfig.rootpath,
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_a_report_without_anything_optional_is_still_whole() -> None:
    bare = build.report(
        arms=(),
        losslessness=None,
        audits=(),
        warnings=(),
        timeline=(),
        telemetry={},
        environment={},
        files={},
    )
    words = Page(render_html(bare)).words
    assert tables.statement(bare) in words
    assert "No plot “Blocks over time”: one block has no course in time." in words
    assert "No plot “Speedup over ar”: no arm was compared with ar." in words
