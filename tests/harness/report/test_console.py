"""The closing words on the terminal."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.paths import RunFolder
from harness.report.console import closing_table
from harness.results import Report
from tests.harness.report import build, pieces

FOLDER = RunFolder(Path("reports/today"))


def test_the_table_has_a_row_for_each_arm_with_the_seven_columns() -> None:
    lines = closing_table(build.report(), FOLDER).splitlines()
    head = next(index for index, line in enumerate(lines) if line.startswith("arm "))
    assert lines[head].split("  ")[0] == "arm"
    assert "speedup over ar [95 %]" in lines[head]
    stock = next(line for line in lines if line.startswith("stock"))
    assert [cell.strip() for cell in stock.split("  ") if cell.strip()] == [
        "stock",
        "stock, 3 drafts",
        "55.5",
        "1.35x [1.29, 1.40]",
        "1.750",
        "faster",
        "exact",
    ]


def test_it_ends_with_the_verdict_and_where_the_report_lies() -> None:
    lines = closing_table(build.report(), FOLDER).splitlines()
    found = build.report().losslessness
    assert found is not None
    assert lines[-2] == found.statement
    assert "reports/today/report.html" in lines[-1]
    assert "specpilot-harness check reports/today" in lines[-1]
    assert "report: reports/today/report.md (also .json)" in closing_table(build.report(), FOLDER, page=False)


def test_a_smoke_run_says_so_and_a_full_run_does_not() -> None:
    assert "smoke run, behind no claim: 24 prompts of at most 64 tokens, 3 launches" in closing_table(
        build.report(), FOLDER
    )
    assert "smoke" not in closing_table(build.near_tie(), FOLDER)


def test_an_invalid_run_gives_reasons_and_no_speed() -> None:
    text = closing_table(build.invalid(), FOLDER)
    assert "INVALID RUN, no speedup is given:\n  - foreign load 62 %" in text
    assert "1.35x" not in text
    assert "55.5" not in text
    assert "tokens/s" not in text


def test_a_failed_audit_is_told_and_one_without_verdict_is_not() -> None:
    audits = (*build.report().audits, msgspec.structs.replace(build.report().audits[0], passed=False))
    text = closing_table(build.report(audits=audits), FOLDER)
    assert text.count("audit failed: every request finished: 1152 of 1152") == 1
    assert "replay accepts everything" not in text


def test_a_batch_is_named() -> None:
    own = pieces.job()
    measure = msgspec.structs.replace(own.plan.measure, batch=8)
    own = msgspec.structs.replace(own, plan=msgspec.structs.replace(own.plan, measure=measure))
    assert "4 blocks, batch 8" in closing_table(build.report(job=own), FOLDER)


@pytest.mark.parametrize(
    "report",
    [build.hostile(), build.report(status="invalid", reasons=(pieces.HOSTILE,))],
    ids=["names and texts", "reasons"],
)
def test_foreign_text_cannot_steer_the_terminal(report: Report) -> None:
    text = closing_table(report, FOLDER)
    assert all(char.isprintable() or char == "\n" for char in text)
