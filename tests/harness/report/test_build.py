"""Writing the three faces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.codec import canonical_json, from_json
from harness.errors import InvalidRun
from harness.paths import RunFolder
from harness.report.build import write_report
from harness.report.html import render_html
from harness.report.markdown import render_markdown
from harness.results import Report
from tests.harness.report import build


def test_the_three_files_lie_there_and_the_json_is_the_record(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    report = build.near_tie()
    write_report(report, folder)
    assert sorted(path.name for path in folder.root.iterdir()) == ["report.html", "report.json", "report.md"]
    assert folder.report_json.read_bytes() == canonical_json(report) + b"\n"
    assert from_json(folder.report_json.read_bytes(), Report, "report.json") == report
    assert folder.report_md.read_text(encoding="utf-8") == render_markdown(report)
    assert folder.report_html.read_text(encoding="utf-8") == render_html(report)


def test_the_page_may_be_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    write_report(build.near_tie(), folder, page=False)
    assert sorted(path.name for path in folder.root.iterdir()) == ["report.json", "report.md"]


def test_where_the_json_cannot_be_written_the_others_lie_already(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.report_json.mkdir()
    (folder.report_json / "kept").touch()  # a folder in the way of the file
    with pytest.raises(InvalidRun, match=r"report\.json"):
        write_report(build.report(), folder)
    assert folder.report_md.is_file()
    assert folder.report_html.is_file()


def test_where_the_html_cannot_be_written_there_is_no_json(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.report_html.mkdir()
    (folder.report_html / "kept").touch()
    with pytest.raises(InvalidRun, match=r"report\.html"):
        write_report(build.report(), folder)
    assert not folder.report_json.exists()


def test_a_folder_that_cannot_be_made_makes_the_run_invalid(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRun, match="choose another --out"):
        write_report(build.report(), RunFolder(tmp_path / "file" / "run"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_makes_the_run_invalid(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidRun, match="cannot write"):
        write_report(build.report(), RunFolder(tmp_path))


def test_a_hostile_report_is_written_whole_and_reads_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_report(build.hostile(), folder)
    assert from_json(folder.report_json.read_bytes(), Report, "report.json") == build.hostile()
