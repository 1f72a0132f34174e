"""What runs a trial. Stateless: all that must survive lies in the trial's folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from harness.codec import Record
from harness.oracle.stored import StoredRun
from harness.plan import Job, Param

_ARM = re.compile(r"arms\[(?P<name>[^\]]+)\]")


class ConfirmRequest(Record, frozen=True):
    """The candidate file that ``evals confirm`` reads."""

    schema: str
    name: str
    backend: str
    params: dict[str, Param] = {}


class TrialFailed(Exception):
    """A trial gave no report: `said` is the last line of the process, `exit_code` its code."""

    def __init__(self, said: str, exit_code: int) -> None:
        """Keep what the process said."""
        super().__init__(said)
        self.said = said
        self.exit_code = exit_code

    @property
    def arm(self) -> str | None:
        """The arm that the message names, if it does."""
        found = _ARM.search(self.said)
        return None if found is None else found["name"]


class Executor(Protocol):
    """Runs measurements; one at a time on a host, for they are timed."""

    def start_unseen(self, job: Job, folder: Path, controller: Path, options: tuple[str, ...]) -> None:
        """Seal the rows of a new campaign of unseen shards; nothing if it is there.

        Raises:
            TrialFailed: it could not be made.
        """
        ...

    def measure(self, job: Job, folder: Path) -> StoredRun:
        """Run a job on public rows; continue it where an earlier process left it.

        Raises:
            TrialFailed: there is no report.
        """
        ...

    def confirm(self, request: ConfirmRequest, folder: Path, unseen: Path, controller: Path) -> str:
        """Spend an unseen shard: the one line that the other process says.

        Args:
            request: the arm.
            folder: of this confirmation, for the candidate file and the log.
            unseen: folder of the sealed campaign.
            controller: folder of its keys and evidence.

        Raises:
            TrialFailed: it said no verdict.
        """
        ...

    def answer(self, folder: Path) -> str | None:
        """The line that a confirmation in this folder has said, once nothing runs in it any more."""
        ...

    def evidence(self, request: ConfirmRequest, unseen: Path, controller: Path) -> StoredRun | None:
        """The run behind the newest confirmation of an arm; for the controller's eyes only."""
        ...
