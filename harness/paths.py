"""Where things lie: the user cache and the folder of a run. Nothing is written anywhere else."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def user_cache() -> Path:
    """Folder for converted models and other things that can be made again.

    `SPECPILOT_CACHE_DIR` overrides the platform's own place.
    """
    override = os.environ.get("SPECPILOT_CACHE_DIR")
    return Path(override) if override else Path(platformdirs.user_cache_dir("specpilot-harness"))


def evals_dir() -> Path | None:
    """Folder of original evaluation files, if `SPECPILOT_EVALS_DIR` names one."""
    override = os.environ.get("SPECPILOT_EVALS_DIR")
    return Path(override) if override else None


def controller_dir() -> Path:
    """Folder of campaign keys and of the evidence of confirmations; no explorer may read it.

    `SPECPILOT_CONTROLLER_DIR` overrides the platform's own place.
    """
    override = os.environ.get("SPECPILOT_CONTROLLER_DIR")
    return (
        Path(override) if override else Path(platformdirs.user_data_dir("specpilot-harness")) / "controller"
    )


class RunFolder:
    """Names of the files of one run."""

    def __init__(self, root: Path) -> None:
        """Describe the folder; nothing is created."""
        self.root = root
        self.report_json = root / "report.json"
        self.report_md = root / "report.md"
        self.report_html = root / "report.html"
        self.responses = root / "responses.jsonl"
        self.prompts = root / "prompts.jsonl"  # text and token ids of every prompt of the run
        self.job = root / "job.json"  # plan and deployment as run
        self.partial = root / "partial"  # responses of launches not yet merged

    def launch_file(self, launch: int) -> Path:
        """Responses of one launch, appended block by block."""
        return self.partial / f"launch-{launch}.jsonl"
