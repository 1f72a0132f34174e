"""Results of other tools, damaged: refused by name, or read; and never markup in a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UndefinedMetric
from harness.importers.claim import claim_toml
from harness.importers.detect import read_result
from harness.importers.headlines import headlines
from harness.importers.page import render_markdown, render_page
from harness.importers.records import Imported
from tests.fuzz.hammering import hammer, quick_and_deep, refuses_or_reads
from tests.fuzz.mutating import broken, hostile_json, json_text
from tests.fuzz.test_reports import ATTACKS, CANARY, Seen, hold, replaced, texts
from tests.harness.importers import files

SECONDS = files.SPEC_SECONDS
KINDS: dict[str, Callable[[Path], Path]] = {
    "vllm": lambda path: files.serving(path, SECONDS),
    "sglang": lambda path: files.sglang(path, SECONDS),
    "guidellm": lambda path: files.guidellm(path, SECONDS),
    "aiperf": lambda path: files.aiperf(path, SECONDS),
    "aiperf summary": files.aiperf_summary,
    "spec-bench": lambda path: files.spec_bench(path, SECONDS, steps=True),
}


def documents(path: Path) -> list[Any]:
    text = path.read_text()
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def use(path: Path, beside: Imported | None = None) -> None:
    found = read_result(path)
    claim_toml(found, None, "who")
    if beside is not None:
        render_markdown(beside, found, headlines(beside, found), "a note")


@quick_and_deep
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_result_is_refused_by_name_or_read(kind: str, deep: bool, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path / "result.json")
    valid, beside = documents(path), read_result(path)

    def check(document: Any) -> None:
        lines = document if isinstance(document, list) else [document]
        path.write_text("\n".join(map(json_text, lines)))
        refuses_or_reads(lambda: read_result(path), str(path))
        refuses_or_reads(lambda: use(path, beside))

    hammer(check, broken(valid), deep=deep, quick=25)


@quick_and_deep
def test_what_is_no_result_is_refused_by_name(deep: bool, tmp_path: Path) -> None:
    path = files.serving(tmp_path / "result.json", SECONDS)
    valid = documents(path)[0]

    def check(data: bytes) -> None:
        path.write_bytes(data)
        refuses_or_reads(lambda: read_result(path), str(path))

    hammer(check, hostile_json(valid), deep=deep)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("aiperf summary",)])
def test_no_element_or_attribute_of_the_page_comes_from_a_file(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path / "result.json")
    valid, beside = documents(path), read_result(path)
    calm = Seen(render_page(beside, beside, headlines(beside, beside), "a note"))
    for attack in ATTACKS:
        attacked = valid
        for way in texts(valid):
            one = replaced(attacked, way, attack)
            path.write_text("\n".join(map(json_text, one)))
            if isinstance(refuses_or_reads(lambda: read_result(path)), Imported):
                attacked = one
        path.write_text("\n".join(map(json_text, attacked)))
        try:
            found = read_result(path)
            page = render_page(found, found, headlines(found, found), attack)
        except UndefinedMetric:
            continue
        assert CANARY in page
        hold(page, calm)
