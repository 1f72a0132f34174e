"""The parent of the launches: starts each worker, follows it, keeps what it measured.

A worker that is interrupted leaves its finished blocks; the next process continues after them.
"""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from harness.codec import canonical_json, from_json
from harness.errors import EXIT_USAGE, HarnessError, InvalidRun, UsageError
from harness.measure.worker import LaunchSpec, Message
from harness.paths import RunFolder
from harness.plan import Job
from harness.records import Response
from harness.storage import read_lines, write_atomic, write_lines

END_S = 60.0  # a worker has servers of its own to end


class BlockWindow(NamedTuple):
    """When a block ran, by the parent's clock; telemetry is cut along it."""

    launch: int
    block: int
    started: float
    ended: float


def finished_responses(folder: RunFolder, job: Job, prompts: int, launch: int) -> list[Response]:
    """Responses of the complete blocks of a launch; torn lines and partial blocks are dropped."""
    path = folder.launch_file(launch)
    if not path.exists():
        return []
    responses = list(read_lines(path, Response, drop_torn_tail=True))
    whole = prompts * len(job.plan.arms)
    kept = [
        response
        for block in range(job.plan.measure.blocks)
        for response in responses
        if response.block == block and sum(r.block == block for r in responses) == whole
    ]
    if len(kept) != len(responses) or not path.read_bytes().endswith(b"\n"):
        write_lines(path, kept)
    return kept


def run_launch(
    job: Job,
    folder: RunFolder,
    prompts: int,
    launch: int,
    advance: Callable[[int], None],
    now: Callable[[], float],
) -> tuple[list[Response], dict[str, Any], list[BlockWindow]]:
    """Run what is left of one launch in a fresh process.

    Returns:
        Its responses, the facts its backends told, and the window of each block measured now.

    Raises:
        HarnessError: what the worker said, with its exit code; InvalidRun when it died.
    """
    done = finished_responses(folder, job, prompts, launch)
    blocks = tuple(sorted({response.block for response in done}))
    facts_file = folder.partial / f"launch-{launch}.facts.json"
    advance(len(done))
    windows: list[BlockWindow] = []
    if len(blocks) < job.plan.measure.blocks or not facts_file.exists():
        spec = LaunchSpec(
            job=job,
            launch=launch,
            blocks_done=blocks,
            prompts=str(folder.prompts),
            output=str(folder.launch_file(launch)),
        )
        spec_file = folder.partial / f"launch-{launch}.spec.json"
        write_atomic(spec_file, canonical_json(spec))
        log = folder.partial / f"launch-{launch}.log"
        started = now()
        for message in _messages(spec_file, log, launch):
            if message.event == "ready":
                write_atomic(facts_file, canonical_json(message.facts))
                started = now()
            elif message.event == "slot":
                advance(message.requests)
            elif message.event == "block" and message.block is not None:
                windows.append(BlockWindow(launch, message.block, started, now()))
                write_atomic(facts_file, canonical_json(message.facts))  # counters have moved on
                started = now()
            elif message.event == "done":
                write_atomic(facts_file, canonical_json(message.facts))
        done = finished_responses(folder, job, prompts, launch)
    facts: dict[str, Any] = from_json(facts_file.read_bytes(), dict[str, Any], str(facts_file))
    return done, facts, windows


def _messages(spec_file: Path, log: Path, launch: int) -> Iterator[Message]:
    """Start the worker and yield what it tells; end it when the consumer stops."""
    with log.open("ab") as errors:
        worker = subprocess.Popen(
            [sys.executable, "-m", "harness.measure.worker", str(spec_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        finished = False
        try:
            for message in _decode(worker.stdout or io.BytesIO()):
                if message.event == "error":
                    raise _as_error(message, launch)
                finished = message.event == "done"
                yield message
            code = worker.wait()
            if not finished:
                raise InvalidRun(
                    f"launch {launch} ended with code {code}: {_last_line(log)}; its log is {log}"
                )
        finally:
            _end(worker)


def _decode(stream: IO[bytes]) -> Iterator[Message]:
    for line in stream:
        yield from_json(line, Message, "worker")


def _as_error(message: Message, launch: int) -> HarnessError:
    text = f"launch {launch}: {message.error}"
    return UsageError(text) if message.exit_code == EXIT_USAGE else InvalidRun(text)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _end(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is None:
        worker.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(timeout=END_S)
    if worker.poll() is None:
        worker.kill()
        worker.wait()
    if worker.stdout is not None:
        worker.stdout.close()
