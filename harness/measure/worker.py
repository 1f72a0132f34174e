"""The process of one launch: ``python -m harness.measure.worker SPEC.json``.

Reads what to run from a file, appends responses block by block, and tells its parent what happens
in JSON lines on its original standard output; whatever a backend prints goes to standard error.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from harness.codec import Record, canonical_json, from_json
from harness.ending import POLITE, ending_on_signals
from harness.errors import EXIT_INVALID, HarnessError
from harness.measure.launch import facts, open_sessions, requests_for, run_slots, warm_up
from harness.measure.probes import probe
from harness.measure.strangers import meet_strangers
from harness.plan import Job
from harness.records import PromptLine
from harness.storage import append_lines, read_lines


class LaunchSpec(Record, frozen=True):
    """Everything a launch needs to know."""

    job: Job
    launch: int
    blocks_done: tuple[int, ...]
    prompts: str  # path of prompts.jsonl
    output: str  # path of the JSON lines to append to


class Message(Record, frozen=True):
    """One line from the worker to its parent."""

    event: Literal["ready", "slot", "block", "done", "error"]
    facts: dict[str, Any] = {}
    block: int | None = None
    requests: int = 0  # responses finished by a slot
    error: str | None = None
    exit_code: int | None = None


class SystemClock:
    """The measurer's clock."""

    def monotonic_ns(self) -> int:
        """See `harness.protocols.Clock`."""
        return time.perf_counter_ns()

    def time(self) -> float:
        """See `harness.protocols.Clock`."""
        return time.time()


def main(arguments: list[str]) -> int:
    """Run one launch; the exit code is 0, or that of the error told to the parent."""
    channel = _private_stdout()

    def tell(message: Message) -> None:
        channel.write(canonical_json(message) + b"\n")
        channel.flush()

    try:
        spec = from_json(Path(arguments[0]).read_bytes(), LaunchSpec, arguments[0])
        with ending_on_signals((*POLITE, signal.SIGINT)):  # a terminal's Ctrl-C comes here too
            last = _run(spec, tell)
    except HarnessError as error:
        tell(Message(event="error", error=str(error), exit_code=error.exit_code))
        return error.exit_code
    except MemoryError:
        text = "out of memory; choose a smaller batch, context_length or target"
        tell(Message(event="error", error=text, exit_code=EXIT_INVALID))
        return EXIT_INVALID
    tell(Message(event="done", facts=last))
    return 0


def _run(spec: LaunchSpec, tell: Any) -> dict[str, Any]:
    """Run what is left of the launch; what the backends told at its end."""
    clock = SystemClock()
    prompts = tuple(read_lines(Path(spec.prompts), PromptLine))
    with open_sessions(spec.job) as sessions:
        warm_up(spec.job, sessions, requests_for(spec.job, prompts), clock)
        tell(Message(event="ready", facts=facts(spec.job, sessions)))
        for block, responses in run_slots(
            spec.job,
            sessions,
            prompts,
            spec.launch,
            frozenset(spec.blocks_done),
            clock,
            lambda slot: tell(Message(event="slot", block=slot.block, requests=len(slot.prompts))),
        ):
            append_lines(Path(spec.output), responses)
            # What a launch that is cut behind its last block has told: its counters stand by then.
            tell(Message(event="block", block=block, facts=facts(spec.job, sessions)))
        told = facts(spec.job, sessions)  # before the strangers: they do not count
        for arm, met in meet_strangers(spec.job, sessions, prompts, spec.launch, clock).items():
            told[spec.job.plan.arm(arm).backend]["arms"][arm]["strangers"] = met
        if spec.launch == spec.job.plan.measure.launches - 1:
            for arm, audits in probe(spec.job, sessions, prompts, spec.launch, clock).items():
                own = told[spec.job.plan.arm(arm).backend].setdefault("probes", [])
                own += [msgspec.to_builtins(audit) for audit in audits]
    return told


def _private_stdout() -> BinaryIO:
    """Keep the original standard output for messages; send everything else to standard error."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return channel


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
