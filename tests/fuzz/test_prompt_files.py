"""Prompt files and seals of strangers: JSON Lines, arrays, gzip, seals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from hypothesis import strategies as st

from harness.codec import canonical_json, from_json
from harness.plan import SetSpec
from sealed_evals.catalogue import own_layout
from sealed_evals.lint import lint
from sealed_evals.load import load_set
from sealed_evals.seal import SealFile, check_seal, make_seal
from tests.fuzz.hammering import hammer, quick_and_deep, refuses_or_reads
from tests.fuzz.mutating import broken, hostile_json, json_text, scrambled

ROWS = [
    {"prompt": "How many?", "category": "math"},
    {"prompt": ["first turn", "second"], "id": 7},
    {"prompt": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "no"}]},
]
GOOD = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS[:1] * 3)


def written(rows: object) -> bytes:
    listed = rows if isinstance(rows, list) else [rows]
    return b"".join(json_text(row).encode() + b"\n" for row in listed)


@quick_and_deep
def test_a_bad_prompt_file_is_refused_by_name_and_linted(deep: bool, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    spec = SetSpec(name="mine", path=str(path), count=1)

    def check(data: bytes) -> None:
        path.write_bytes(data)
        refuses_or_reads(lambda: load_set(spec, evals_dir=None, seed=1), "mine")
        refuses_or_reads(lambda: lint(data, own_layout("prompt"), str(path)), str(path))
        refuses_or_reads(lambda: make_seal("mine", data, own_layout("prompt"), str(path)), str(path))

    lines = broken(ROWS).map(written) | scrambled(written(ROWS)) | hostile_json(ROWS)
    hammer(check, lines | lines.map(gzip.compress) | scrambled(gzip.compress(GOOD)), deep=deep)


@quick_and_deep
def test_a_bad_seal_is_refused_or_names_differences(deep: bool) -> None:
    seal = json.loads(canonical_json(make_seal("mine", GOOD, own_layout("prompt"), "mine.jsonl")))

    def check(data: bytes) -> None:
        found = refuses_or_reads(lambda: from_json(data, SealFile, "seal.json"), "seal.json")
        if isinstance(found, SealFile):
            refuses_or_reads(lambda: check_seal(found, GOOD, "mine.jsonl"))

    hammer(check, hostile_json(seal), deep=deep)


@quick_and_deep
def test_no_row_is_lost_or_made_up(deep: bool, tmp_path: Path) -> None:
    """Whatever characters prompts hold, they come back as they were written."""
    path = tmp_path / "mine.jsonl"
    texts = st.lists(
        st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip),
        min_size=1,
        max_size=5,
    )

    def check(prompts: list[str], escaped: bool) -> None:
        rows = [json.dumps({"prompt": text}, ensure_ascii=escaped) for text in prompts]
        path.write_text("\n".join(rows) + "\n", encoding="utf-8", newline="")
        spec = SetSpec(name="mine", path=str(path), count=len(prompts))
        found = refuses_or_reads(lambda: load_set(spec, evals_dir=None, seed=1))
        assert found is None or sorted(p.turns[0] for p in found.prompts) == sorted(prompts)  # type: ignore[attr-defined]

    hammer(check, texts, st.booleans(), deep=deep)
