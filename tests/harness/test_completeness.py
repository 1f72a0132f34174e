"""R12: committed reports are complete; one that leaves something out is told what."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.codec import from_json, from_plain
from harness.completeness import incomplete
from harness.results import Report

REPORTS = Path(__file__).parents[2] / "reports"
FOLDERS = sorted(path.parent for path in REPORTS.rglob("responses.jsonl*"))
FULL = REPORTS / "2026-12-02-compare-vllm-cpu"


def read(folder: Path) -> Report:
    return from_json((folder / "report.json").read_bytes(), Report, str(folder))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(REPORTS)))
def test_every_committed_report_is_complete(folder: Path) -> None:
    assert incomplete(folder, read(folder)) == ()


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(plain: dict[str, Any]) -> None:
        inner: Any = plain
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("environment", "cpu", value=None), "`environment.cpu` is missing"),
        (put("environment", "packages_sha256", value=""), "`environment.packages_sha256` is missing"),
        (put("harness", value={}), "`harness.version` is missing"),
        (put("models", "tokenizer", value={}), "`models.tokenizer.tokenizer_sha256` is missing"),
        (put("command", value=[]), "`command` is missing"),
        (put("job", "deployment", "device", value="cuda"), "`environment.gpus` is missing"),
        (put("sets", 0, "prompts_sha256", value=""), "embedded lacks a hash"),
        (put("audits", value=[]), "`audits` is empty"),
        (put("losslessness", value=None), "`losslessness` is missing"),
        (put("status", value="invalid"), "`reasons` is empty"),
        (put("arms", 1, "speedup", value=None), "arm candidate: `speedup` is missing"),
        (put("arms", 1, "failed", value=2), "arm candidate: 2 requests failed"),
        (put("job", "plan", "measure", "launches", value=1), "with 1 launches; a claim needs 3"),
        (put("arms", 0, "requests", value=199), "with 199 requests an arm; a claim needs 200"),
        (put("files", "prompts.jsonl", value="0" * 64), "prompts.jsonl is not the file"),
        (put("files", value={}), "`files` lacks responses.jsonl"),
    ],
)
def test_what_is_missing_is_named(change: Callable[[dict[str, Any]], None], words: str) -> None:
    plain = msgspec.to_builtins(read(FULL))
    change(plain)
    found = incomplete(FULL, from_plain(plain, Report, "report"))
    assert any(words in problem for problem in found), found


def test_a_file_that_is_gone_is_missed(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FULL, tmp_path / "run"))
    (file,) = folder.glob("responses.jsonl*")  # packed or not
    file.unlink()
    assert any("responses.jsonl, which is not there" in problem for problem in incomplete(folder, read(FULL)))
