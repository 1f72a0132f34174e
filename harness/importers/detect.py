"""Which tool wrote a file, and its reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from harness.errors import DataError
from harness.importers import aiperf, guidellm, serving, spec_bench
from harness.importers.records import Imported, Source, Tool

Reader = Callable[[Source, list[dict[str, Any]]], Imported]
READERS: tuple[tuple[Tool, Callable[[Mapping[str, Any]], bool], Reader], ...] = (
    ("spec-bench", spec_bench.is_spec_bench, spec_bench.read_spec_bench),
    ("guidellm", guidellm.is_guidellm, guidellm.read_guidellm),
    ("aiperf", aiperf.is_records, aiperf.read_records),
    ("aiperf", aiperf.is_summary, aiperf.read_summary),
    ("vllm-bench", serving.is_vllm, serving.read_vllm),
    ("sglang-bench", serving.is_sglang, serving.read_sglang),
)


def read_result(path: Path) -> Imported:
    """The result in a file, whichever tool wrote it.

    Raises:
        DataError: it cannot be read, no tool we know writes this, or a field is not what it should be.
    """
    source = Source(path)
    documents = source.documents()
    for _, knows, read in READERS:
        if knows(documents[0]):
            return read(source, documents)
    raise DataError(f"{path}: written by none of {', '.join(get_args(Tool))}")
