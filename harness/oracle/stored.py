"""A finished run, read back from its folder. Reads claims; believes none of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, TypeVar

from harness.codec import from_json
from harness.errors import DataError
from harness.paths import RunFolder
from harness.plan import Job
from harness.records import PromptLine, Response
from harness.results import Report
from harness.storage import read_lines

R = TypeVar("R")


class StoredRun(NamedTuple):
    """What a run left on disk."""

    job: Job
    prompts: tuple[PromptLine, ...]
    responses: tuple[Response, ...]
    report: Report


def load_run(root: Path) -> StoredRun:
    """Read report.json, job.json, prompts.jsonl and responses.jsonl of a run folder.

    Raises:
        DataError: naming the file and the field that cannot be read.
    """
    folder = RunFolder(root)
    return StoredRun(
        job=_one(folder.job, Job),
        prompts=tuple(read_lines(folder.prompts, PromptLine)),
        responses=tuple(read_lines(folder.responses, Response)),
        report=_one(folder.report_json, Report),
    )


def _one(path: Path, kind: type[R]) -> R:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; give the folder of a finished run") from None
    return from_json(data, kind, str(path))
