"""The life of a run folder: fresh, unfinished, finished; what may be done in each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from harness.codec import canonical_json, from_json
from harness.errors import InvalidRun, UsageError
from harness.paths import RunFolder
from harness.plan import Job
from harness.storage import write_atomic

Mode = Literal["new", "resume", "overwrite"]


def claim(folder: RunFolder, job: Job, mode: Mode) -> None:
    """Make the folder ready for this job, or say why not.

    Args:
        folder: the run folder, already locked by this process.
        job: what will run.
        mode: "new" wants an empty folder; "resume" continues an unfinished run of exactly this job;
            "overwrite" removes what an earlier run left here (only files a run writes).

    Raises:
        UsageError: the folder holds another run, or there is nothing to resume.
        InvalidRun: the folder cannot be written.
    """
    earlier = _earlier(folder)
    if mode == "resume":
        if earlier is None:
            raise UsageError(f"--resume: {folder.root} holds no unfinished run; leave --resume out")
        if earlier.hash != job.hash:
            raise UsageError(
                f"--resume: {folder.root} holds a run of another plan (hash {earlier.hash[:12]}, this one is "
                f"{job.hash[:12]}); choose another --out, or --overwrite"
            )
    elif mode == "overwrite":
        clear(folder)
    elif earlier is not None:
        state = "a finished run" if folder.report_json.exists() else "an unfinished run"
        raise UsageError(f"{folder.root} holds {state}; --resume continues it, --overwrite starts anew")
    elif folder.report_json.exists():
        raise UsageError(f"{folder.root} holds a report; choose another --out, or --overwrite")
    write_atomic(folder.job, canonical_json(job))
    _make(folder.partial)


def clear(folder: RunFolder) -> None:
    """Remove the files a run writes, and nothing else."""
    for path in (
        folder.report_json,
        folder.report_md,
        folder.report_html,
        folder.responses,
        folder.prompts,
        folder.job,
    ):
        path.unlink(missing_ok=True)
    finish(folder)


def finish(folder: RunFolder) -> None:
    """Remove the partial files of a run whose responses have been merged."""
    if folder.partial.is_dir():
        shutil.rmtree(folder.partial)


def _earlier(folder: RunFolder) -> Job | None:
    if not folder.job.exists():
        return None
    return from_json(folder.job.read_bytes(), Job, str(folder.job))


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRun(f"cannot write in {path}: {error.strerror}; choose another --out") from None
