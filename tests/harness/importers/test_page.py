"""The same data, four headlines: as a report, and the one that is committed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.importers.detect import read_result
from harness.importers.headlines import headlines
from harness.importers.page import render_markdown, render_page
from harness.importers.words import faults
from tests.harness.importers import files

COMMITTED = Path(__file__).parents[3] / "reports" / "2026-12-02-four-headlines"


def test_the_committed_report_tells_the_faults_of_the_others_averages() -> None:
    told = json.loads((COMMITTED / "headlines.json").read_text())
    speedups = {one["used_by"]: one["speedup"] for one in told["headlines"]}
    base, spec, tokens = (3.5, 20.0, 0.5, 0.5), (0.2, 25.0, 0.2, 0.2), (50, 2000, 50, 50)
    rates = [[t / s for t, s in zip(tokens, seconds, strict=True)] for seconds in (base, spec)]
    assert speedups["this harness"] == pytest.approx(24.5 / 25.6)
    assert speedups["Spec-Bench, EAGLE"] == pytest.approx(sum(rates[1]) / sum(rates[0]))
    slow, fast = (sum(1.0 / rate for rate in arm) for arm in rates)
    assert speedups["dflash"] == pytest.approx(slow / fast)
    again = sum((t - 1) / s for t, s in zip(tokens, base, strict=True))  # one token off a turn
    assert speedups["Spec-Bench's speed.py"] == pytest.approx(sum(rates[1]) / again)
    assert told["without_first"] == pytest.approx(21.0 / 25.4)
    page, text = ((COMMITTED / f"headlines.{kind}").read_text() for kind in ("html", "md"))
    for found in (page, text):
        assert all(f"{speedup:.3f}x" in found for speedup in speedups.values())
        assert "nobody measured them" in found


def test_the_committed_report_is_what_its_files_give() -> None:
    base, spec = (read_result(COMMITTED / f"{name}.jsonl") for name in ("autoregressive", "speculative"))
    found = headlines(base, spec)
    told = json.loads((COMMITTED / "headlines.json").read_text())
    assert [one.speedup for one in found.found] == pytest.approx(
        [o["speedup"] for o in told["headlines"][:4]]
    )
    assert len(faults(found)) == 5  # three averages of another sign, a cold start, two acceptance lengths


def test_honest_data_shows_no_fault(tmp_path: Path) -> None:
    base = read_result(files.serving(tmp_path / "b", (20.0, 0.5, 0.5)))
    spec = read_result(files.serving(tmp_path / "s", (10.0, 0.25, 0.25)))
    assert faults(headlines(base, spec)) == ()


def test_foreign_text_is_escaped_on_the_page_and_in_markdown(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script> | [x](https://evil.example)"
    base = read_result(files.serving(tmp_path / "b", files.BASE_SECONDS, model_id=bad))
    spec = read_result(files.serving(tmp_path / "s", files.SPEC_SECONDS, model_id=bad))
    found = headlines(base, spec)
    page = render_page(base, spec, found, bad)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    text = render_markdown(base, spec, found, bad)
    assert "<script" not in text.replace("\\<", "")
    assert r"\[x](https\:" in text


def test_the_command_writes_three_files_and_needs_a_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = files.serving(tmp_path / "b", files.BASE_SECONDS)
    spec = files.serving(tmp_path / "s", files.SPEC_SECONDS)
    out = tmp_path / "out"
    assert main(["import", str(spec), "--baseline", str(base), "--report", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["headlines.html", "headlines.json", "headlines.md"]
    assert main(["import", str(spec), "--report", str(out)]) == 3
    assert "--report needs --baseline" in capsys.readouterr().err
