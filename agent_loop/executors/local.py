"""Trials as processes of this machine, through the public command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from agent_loop.executors.protocol import ConfirmRequest, TrialFailed
from agent_loop.toml import to_toml
from harness.codec import digest
from harness.errors import EXIT_INVALID, EXIT_OK, EXIT_USAGE, EXIT_VIOLATED, InvalidRun
from harness.oracle.stored import StoredRun, load_run
from harness.paths import RunFolder
from harness.plan import Job
from harness.storage import hold, write_atomic

VERDICTS = ("accept", "reject: ")
PLAN, DEPLOYMENT, RUN, SAID = "plan.toml", "deployment.toml", "run", "said.txt"


class LocalProcesses:
    """One process a trial; a lock file keeps other measurements off this host meanwhile."""

    def __init__(self, lock: Path, *, timeout_s: float = 3600.0, evals_dir: Path | None = None) -> None:
        """Keep the lock's place; nothing is started.

        Args:
            lock: file that every measurement on this host holds.
            timeout_s: of a trial.
            evals_dir: folder of original evaluation files.
        """
        self._lock = lock
        self._timeout = timeout_s
        self._options = () if evals_dir is None else ("--evals-dir", str(evals_dir))

    def start_unseen(self, job: Job, folder: Path, controller: Path, options: tuple[str, ...]) -> None:
        """See `Executor`."""
        if (folder / "campaign.json").is_file():
            return
        plan = write_job(job, folder.parent / "unseen-plan")
        where = ("--controller", str(controller))
        self._run(
            ("evals", "campaign", str(folder), "--plan", str(plan), *where, *options, *self._options),
            folder.parent / "unseen-plan",
            (EXIT_OK,),
        )

    def measure(self, job: Job, folder: Path) -> StoredRun:
        """See `Executor`."""
        run = folder / RUN
        if not RunFolder(run).report_json.is_file():
            plan = write_job(job, folder)
            mode = ("--resume",) if RunFolder(run).job.is_file() else ()
            self._run(
                ("run", str(plan), "--out", str(run), "--no-page", *mode, *self._options),
                folder,
                (EXIT_OK, EXIT_VIOLATED, EXIT_INVALID),
            )
        if not RunFolder(run).report_json.is_file():
            said = _last_line(folder / "log.txt")
            raise TrialFailed(said, EXIT_USAGE if ".params:" in said else 2)
        return load_run(run)

    def confirm(self, request: ConfirmRequest, folder: Path, unseen: Path, controller: Path) -> str:
        """See `Executor`."""
        path = folder / "candidate.toml"
        write_atomic(path, to_toml(request))
        where = ("--controller", str(controller))
        said = self._run(
            (*("evals", "confirm", str(path), "--campaign", str(unseen)), *where, *self._options),
            folder,
            (EXIT_OK, EXIT_VIOLATED),
        )
        line = _verdict(said)
        if line is None:
            raise TrialFailed("evals confirm said no verdict", 2)
        return line

    def answer(self, folder: Path) -> str | None:
        """See `Executor`."""
        with self._held():
            path = folder / SAID
            return _verdict(path.read_text(errors="replace")) if path.is_file() else None

    def evidence(self, request: ConfirmRequest, unseen: Path, controller: Path) -> StoredRun | None:
        """See `Executor`."""
        return read_evidence(request, unseen, controller)

    def _run(self, words: Sequence[str], folder: Path, codes: Sequence[int]) -> str:
        """Run a command of the house; its standard output.

        Raises:
            TrialFailed: it ended with another exit code, or took too long.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with (
            self._held() as handle,
            (folder / "log.txt").open("ab") as log,
            (folder / SAID).open("wb") as said,
        ):
            child = subprocess.Popen(
                [sys.executable, "-m", "harness.cli", *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=log,
                start_new_session=True,
                pass_fds=[handle.fileno()],  # an orphan keeps the host to itself
            )
            try:
                child.wait(timeout=self._timeout)
            except subprocess.TimeoutExpired:
                raise TrialFailed(f"took longer than {self._timeout:g} s", 2) from None
            finally:
                _end(child)
        if child.returncode not in codes:
            raise TrialFailed(_last_line(folder / "log.txt"), child.returncode)
        return (folder / SAID).read_text(errors="replace")

    @contextlib.contextmanager
    def _held(self) -> Iterator[IO[str]]:
        """Hold the host, waiting for a measurement that a killed controller left behind."""
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a+") as handle:
            end = time.monotonic() + self._timeout
            while True:
                try:
                    hold(handle, f"another measurement holds {self._lock}; wait for it, or end it")
                    break
                except InvalidRun:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.2)
            yield handle


def write_job(job: Job, folder: Path) -> Path:
    """Plan and deployment as files; the path of the plan."""
    write_atomic(folder / DEPLOYMENT, to_toml(job.deployment))
    write_atomic(folder / PLAN, to_toml(msgspec.structs.replace(job.plan, deployment=DEPLOYMENT)))
    return folder / PLAN


def read_evidence(request: ConfirmRequest, unseen: Path, controller: Path) -> StoredRun | None:
    """The run behind the newest confirmation of an arm, out of the controller's folder."""
    campaign = json.loads((unseen / "campaign.json").read_bytes())
    lines = [json.loads(line) for line in (unseen / "ledger.jsonl").read_text().splitlines()]
    mine = [one for one in lines if one.get("candidate") == digest(request) and one.get("shard")]
    if not mine:
        return None
    folder = controller / campaign["campaign_id"] / "evidence" / mine[-1]["shard"]
    return load_run(folder) if RunFolder(folder).report_json.is_file() else None


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started and left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _verdict(said: str) -> str | None:
    """The verdict line in what was said, if it is whole."""
    lines = [line for line in said.split("\n")[:-1] if line.startswith(VERDICTS)]
    return lines[-1] if lines else None


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
