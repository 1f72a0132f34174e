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
    """Read what a run stored, and hold that its files speak of the same prompts and arms.

    Raises:
        DataError: naming the file and the field that cannot be read, or the line with a strange name.
    """
    run = read_run(root)
    arms = {arm.name for arm in run.job.plan.arms}
    prompts = {line.prompt.prompt_id for line in run.prompts}
    for number, response in enumerate(run.responses, 1):
        place = f"{root / 'responses.jsonl'} line {number}"
        if response.prompt_id not in prompts:
            raise DataError(f"{place}: prompt {response.prompt_id!r:.80} is not in prompts.jsonl")
        if response.arm not in arms:
            raise DataError(f"{place}: job.json has no arm {response.arm!r:.80}")
    return run


def read_run(root: Path) -> StoredRun:
    """Read what a run stored, for who looks at each response itself: `check` tells all that do not belong.

    Raises:
        DataError: naming the file and the field that cannot be read, or a strange arm of the report.
    """
    folder = RunFolder(root)
    run = StoredRun(
        job=_one(folder.job, Job),
        prompts=tuple(read_lines(folder.prompts, PromptLine)),
        responses=tuple(read_lines(folder.responses, Response)),
        report=_one(folder.report_json, Report),
    )
    arms = {arm.name for arm in run.job.plan.arms} & {arm.name for arm in run.report.job.plan.arms}
    strange = next((arm.name for arm in run.report.arms if arm.name not in arms), None)
    if strange is not None:
        raise DataError(f"{root / 'report.json'}: `arms` holds {strange!r:.80}, which its plan has not")
    return run


def _one(path: Path, kind: type[R]) -> R:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; give the folder of a finished run") from None
    return from_json(data, kind, str(path))
