"""The three faces say the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest

from harness.paths import RunFolder
from harness.report import differences, drafting, lossless_tables, run_tables, speed_tables, tables
from harness.report.console import closing_table
from harness.report.html import render_html
from harness.report.markdown import escape, render_markdown
from harness.results import Report
from tests.harness.report import build
from tests.harness.report.pages import rendered

REPORTS = [build.report, build.invalid, build.violated, build.near_tie, build.distribution]
FOLDER = RunFolder(Path("x"))


def markdown_rows(text: str) -> set[tuple[str, ...]]:
    found = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return {tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)) for line in found}


def html_rows(text: str) -> set[tuple[str, ...]]:
    rows = re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)
    return {tuple(unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)) for row in rows}


@pytest.mark.parametrize("make", REPORTS)
def test_every_row_of_every_table_is_in_markdown_and_html(make: Callable[[], Report]) -> None:
    report = make()
    markdown, page = markdown_rows(render_markdown(report)), html_rows(rendered(make))
    found = report.losslessness
    assert found is not None
    every = [
        tables.headline(report),
        speed_tables.speedups(report),
        speed_tables.categories(report),
        speed_tables.by_set(report),
        differences.differences(report),
        lossless_tables.losslessness(found),
        lossless_tables.losslessness_by_arm(report),
        lossless_tables.divergences(found),
        lossless_tables.stop_faults(found),
        drafting.acceptance(report),
        drafting.by_set(report),
        drafting.detections(report),
        speed_tables.latency(report),
        run_tables.audits(report),
        run_tables.sets(report),
        run_tables.arms_as_run(report),
        run_tables.how(report),
        run_tables.environment(report),
        run_tables.telemetry(report),
        run_tables.telemetry_by_block(report),
        run_tables.files(report),
    ]
    for rows in every:
        for row in rows:
            assert tuple(row.values()) in page
            assert tuple(map(escape, row.values())) in markdown


@pytest.mark.parametrize("make", REPORTS)
def test_headline_and_statement_are_the_same_on_the_terminal(make: Callable[[], Report]) -> None:
    report = make()
    terminal = closing_table(report, FOLDER)
    rows = {
        tuple(cell.strip() for cell in re.split(r"\s{2,}", line.strip())) for line in terminal.splitlines()
    }
    assert {tuple(row.values()) for row in tables.headline(report)} <= rows
    assert tuple(tables.headline(report)[0]) in rows
    assert tables.statement(report) in terminal
    assert tables.statement(report) in unescape(rendered(make))
    assert tables.statement(report) in render_markdown(report)


def test_the_sample_has_the_same_number_of_headline_columns_valid_and_three_invalid() -> None:
    assert len(tables.headline(build.report())[0]) == 7
    assert list(tables.headline(build.invalid())[0]) == [
        "arm",
        "mechanism",
        "acceptance length",
        "stock verdict",
    ]


def test_telemetry_says_what_its_readings_are_and_nothing_of_a_problem_that_was_none() -> None:
    report = build.report(telemetry={"foreign_mean": 0.01, "problem": None})
    assert [row["what"] for row in run_tables.telemetry(report)] == ["foreign_mean"]
    failed = build.report(telemetry={"problem": "NoSuchProcess"})
    assert run_tables.telemetry(failed) == [{"what": "problem", "value": "NoSuchProcess"}]
    for face in (render_html(report), render_markdown(report)):
        assert "share of the CPU time of all cores" in " ".join(face.split())
