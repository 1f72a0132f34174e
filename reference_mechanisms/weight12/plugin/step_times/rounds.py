"""Resident engines timed in turn, round by round, inside a limit of time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from reference_mechanisms.errors import MechanismError
from reference_mechanisms.weight12.plugin.step_times.engine import Engine, EngineFault, Facts
from reference_mechanisms.weight12.plugin.step_times.engine_arguments import ENVIRONMENT, engine_arguments
from reference_mechanisms.weight12.plugin.step_times.steps import AR, PACKED, Sample, sample

PROMPT = 128
LONG, SHORT = 400, 16  # tokens of the two calls whose difference gives a step
START_SHARE = 0.55  # of the limit: engines that are not ready by then are left out
ANSWER_S = 120.0  # for one call
WORKER = "reference_mechanisms.weight12.plugin.step_times.worker"
GPU_FIELDS = "clocks.sm,clocks.mem,power.draw,temperature.gpu,memory.used"

Name = tuple[str, str]  # kind and mode
Command = Callable[[str, str, Sequence[int]], Sequence[str]]


class EngineError(MechanismError):
    """No engine could be timed: the message names each with its reason."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is timed.

    Attributes:
        engines: kinds and modes, each a process that stays up.
        batches: prompts at once.
        rounds: that count; one more goes before them to warm up.
        limit_s: of the whole, the start of the engines included.
    """

    engines: tuple[Name, ...]
    batches: tuple[int, ...]
    rounds: int
    limit_s: float


class Found(msgspec.Struct, kw_only=True):
    """What there is so far.

    Attributes:
        facts: of each engine that came up, by `label`.
        faults: why an engine was left out, or ended early.
        samples: of all whole pairs of calls.
        gpu: `nvidia-smi` after each round (`GPU_FIELDS`), where there is one.
        rounds: done, without the one that warms up.
    """

    facts: dict[str, Facts] = msgspec.field(default_factory=dict)
    faults: dict[str, str] = msgspec.field(default_factory=dict)
    samples: list[Sample] = msgspec.field(default_factory=list)
    gpu: list[str] = msgspec.field(default_factory=list)
    rounds: int = 0


def label(name: Name) -> str:
    """How files and messages call an engine: `bf16`, `weight12-dflash`."""
    kind, mode = name
    return kind if mode == AR else f"{kind}-{mode}"


def worker_command(kind: str, mode: str, batches: Sequence[int]) -> list[str]:
    """The command of an engine's process."""
    arguments = msgspec.json.encode(engine_arguments(kind, mode, batches)).decode()
    return [sys.executable, "-u", "-m", WORKER, arguments]


def measure(
    plan: Plan, logs: Path, heard: Callable[[Found], None], command: Command = worker_command
) -> Found:
    """Start all engines and time them in turn, every second round in the reverse order; kill them at the end.

    Args:
        plan: what to time.
        logs: folder for a log of each engine.
        heard: told after each round that counts.
        command: gives the command of an engine's process.

    Raises:
        EngineError: no engine gave a sample.
    """
    deadline = time.monotonic() + plan.limit_s
    found = Found()
    logs.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        engines = {
            name: stack.enter_context(
                Engine(command(*name, plan.batches), ENVIRONMENT, logs / f"{label(name)}.log")
            )
            for name in plan.engines
        }
        _wait_ready(engines, deadline - (1 - START_SHARE) * plan.limit_s, found)
        for number in range(-1, plan.rounds):
            began = time.monotonic()
            if not _round(number, plan, engines, deadline, found):
                break
            if number >= 0:
                found.rounds += 1
                heard(found)
            now = time.monotonic()
            if number >= 0 and now + (now - began) > deadline:
                break
    if not found.samples:
        reasons = [f"{name}: {reason}" for name, reason in found.faults.items()]
        raise EngineError(
            "no engine could be timed; "
            + ("; ".join(reasons) or f"{plan.limit_s:.0f} s were over before a round was: raise --seconds")
        )
    return found


def _wait_ready(engines: dict[Name, Engine], until: float, found: Found) -> None:
    """Keep the engines that come up in time and are what they are called."""
    for name, engine in list(engines.items()):
        try:
            facts = engine.ready(max(0.0, until - time.monotonic()))
            if name[0] == PACKED and not facts.packed_layers:
                raise EngineFault(f"no layer computes from packed weights on {facts.device}")
            found.facts[label(name)] = facts
        except EngineFault as fault:
            _leave_out(engines, name, f"did not come up: {fault}", found)


def _round(number: int, plan: Plan, engines: dict[Name, Engine], deadline: float, found: Found) -> bool:
    """Time each engine at each batch; False if the time is over or no engine is left."""
    order = list(engines)
    if number % 2:
        order.reverse()
    for batch in plan.batches:
        for name in order:
            if name not in engines:
                continue
            left = deadline - time.monotonic()
            try:
                one = _timed(name, number, batch, engines[name], left)
            except EngineFault as fault:
                if time.monotonic() >= deadline:
                    return False  # not the engine's fault
                _leave_out(engines, name, f"round {number}, batch {batch}: {fault}", found)
                continue
            if one is not None:
                found.samples.append(one)
    found.gpu.extend(gpu_state())
    return bool(engines)


def _timed(name: Name, number: int, batch: int, engine: Engine, left_s: float) -> Sample | None:
    """One pair of calls; None for the round that warms up, whose times mean nothing."""
    began = time.monotonic()
    short = engine.call(batch, PROMPT, SHORT, min(ANSWER_S, max(0.0, left_s)))
    left_s -= time.monotonic() - began
    long = engine.call(batch, PROMPT, LONG, min(ANSWER_S, max(0.0, left_s)))
    if number < 0:
        return None
    try:
        return sample(*name, number, long, short)
    except ValueError as error:
        raise EngineFault(str(error)) from None


def _leave_out(engines: dict[Name, Engine], name: Name, reason: str, found: Found) -> None:
    engines.pop(name).end()
    found.faults[label(name)] = reason


def gpu_state() -> list[str]:
    """A line for each GPU; nothing where `nvidia-smi` is missing."""
    query = ["nvidia-smi", f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return told.stdout.splitlines()
