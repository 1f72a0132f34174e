"""Reports are grouped by what may be compared; a change is told only where intervals do not meet."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.cli import main
from harness.codec import from_json
from harness.report.index import Entry, groups, incomparable, read_entries, render_index
from harness.results import Report

REPORTS = Path(__file__).parents[3] / "reports"
CPU = "2026-12-02-compare-vllm-cpu"
H200 = "2026-12-02-compare-vllm-h200/two-servers-bfloat16"


@pytest.fixture(scope="module")
def report() -> Report:
    return from_json((REPORTS / CPU / "report.json").read_bytes(), Report, CPU)


def times(report: Report, factor: float, made: str) -> Report:
    """The report later, its candidate so many times as fast."""
    arms = tuple(
        arm
        if arm.speedup is None or arm.name != "candidate"
        else replace(
            arm,
            speedup=replace(
                arm.speedup,
                point=arm.speedup.point * factor,
                low=arm.speedup.low * factor,
                high=arm.speedup.high * factor,
            ),
        )
        for arm in report.arms
    )
    return replace(report, arms=arms, created_at=made)


def test_reports_of_one_system_are_one_group_and_a_change_is_told_when_intervals_part(report: Report) -> None:
    entries = [
        Entry("a", report),
        Entry("b", times(report, 1.1, "2027-01-01")),
        Entry("c", times(report, 3.0, "2027-01-02")),
        Entry("d", times(report, 1.0, "2027-01-03")),
        Entry("e", replace(times(report, 9.0, "2027-01-04"), status="invalid", reasons=("busy",))),
    ]
    (group,) = groups(entries)
    told = [row["against the one before"] for row in group.rows]
    assert told == ["first", "no difference shown", "faster", "slower", "-"]
    assert group.rows[-1]["speedup"] == "invalid run"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"division": "system"}, "division: exact-greedy against system"),
        ({"environment": {"gpus": [{"name": "NVIDIA H100"}]}}, "NVIDIA H100"),
        ({"models": {"target": {"weights_sha256": "f" * 64}}}, "target: "),
        ({"sets": ()}, "sets: embedded 14"),
        ({"status": "invalid", "reasons": ("busy",)}, "is an invalid run"),
    ],
)
def test_the_incomparable_is_refused_with_the_reason(
    report: Report, change: dict[str, object], words: str
) -> None:
    other = replace(report, **change)
    assert any(words in reason for reason in incomparable(report, other))
    assert incomparable(report, report) == ()
    if "status" not in change:
        assert len(groups([Entry("a", report), Entry("b", other)])) == 2


def test_a_group_says_by_which_facts_it_is_not_compared_with_the_earlier_ones(report: Report) -> None:
    other = replace(report, division="system", environment={"gpus": [{"name": "NVIDIA H100"}]})
    first, second = groups([Entry("a", report), Entry("b", other)])
    assert first.refused == ()
    assert second.refused == ("group 1 (machine, division)",)
    assert second.title.endswith(" on NVIDIA H100")
    page = render_index([Entry("a", report), Entry("b", other)], [])
    assert "Not compared with group 1 (machine, division)." in page


def test_the_page_of_the_committed_reports_links_each_and_escapes_their_text(report: Report) -> None:
    entries, broken = read_entries(REPORTS)
    assert not broken
    page = render_index([*entries, Entry("<b>", replace(report, division="system"))], ["<script>"])
    assert f'href="{CPU}/report.html"' in page
    assert "<script>" not in page
    assert "<b>" not in page
    assert page == render_index([*entries, Entry("<b>", replace(report, division="system"))], ["<script>"])


def test_the_command_writes_the_page_and_refuses_to_compare_two_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(REPORTS / CPU, tmp_path / "one")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "report.json").write_text("{}")
    assert main(["index", str(tmp_path)]) == 0
    assert "not read: two: " in capsys.readouterr().out
    assert (tmp_path / "index.html").read_text().startswith("<!DOCTYPE html>")
    both = [str(REPORTS / CPU), str(REPORTS / H200)]
    assert main(["index", "--compare", *both]) == 2
    assert "not comparable: machine: " in capsys.readouterr().out
    assert main(["index", "--compare", both[0], both[0]]) == 0
    assert main(["index", str(tmp_path / "nowhere")]) == 3
