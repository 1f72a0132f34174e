"""A trace of an arm's steps: ``python -m agent_loop.cost_model.profiling SPEC.json``, a process of its own.

The same request is decoded twice, first without the profiler, whose bookkeeping slows the host.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness.codec import Record, canonical_json, from_json
from harness.errors import HarnessError, UsageError
from harness.plan import ArmSpec, Deployment
from harness.protocols import ServerSession, Session, resolve
from harness.records import DecodeRequest
from harness.storage import write_atomic

STEPS = 6  # verify steps that are traced
AHEAD = 2  # events in front of them: the prompt's, and a first step


class ProfileSpec(Record, frozen=True):
    """What to trace, and where the trace and its figures go."""

    deployment: Deployment
    arm: ArmSpec
    request: DecodeRequest
    trace: str  # path
    out: str  # path of `Traced`


class Traced(Record, frozen=True):
    """What a trace covers."""

    steps: int
    wall_s: float  # of as many steps at the same place without a profiler


def main(arguments: list[str]) -> int:
    """Trace one arm; the exit code is that of the error, which goes to standard error."""
    try:
        spec = from_json(Path(arguments[0]).read_bytes(), ProfileSpec, arguments[0])
        write_atomic(Path(spec.out), canonical_json(trace(spec, time.perf_counter)))
    except HarnessError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def trace(spec: ProfileSpec, clock: Callable[[], float]) -> Traced:
    """Write the trace of a few steps.

    Raises:
        UsageError: the arm is a server, or its output ends before there is a step.
    """
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415 - slow to import

    session = resolve(spec.arm.backend, "backend")(spec.deployment, [spec.arm])
    try:
        if isinstance(session, ServerSession):
            raise UsageError("a server is not traced from here; give its own trace with --trace")
        _decode(session, spec, clock)  # warm: shapes, caches, graphs
        steps, wall = _decode(session, spec, clock)
        kinds = [ProfilerActivity.CPU]
        if spec.deployment.device == "cuda":
            kinds.append(ProfilerActivity.CUDA)
        events = session.stream(spec.arm.name, [spec.request])
        for _ in range(AHEAD):
            next(events, None)
        with profile(activities=kinds, with_stack=True) as recorded:
            for _ in range(steps):
                next(events, None)
        recorded.export_chrome_trace(spec.trace)
        return Traced(steps=steps, wall_s=wall)
    finally:
        session.close()


def _decode(session: Session, spec: ProfileSpec, clock: Callable[[], float]) -> tuple[int, float]:
    """Steps behind the first `AHEAD` events, at most `STEPS`, and the seconds they took."""
    events = session.stream(spec.arm.name, [spec.request])
    for _ in range(AHEAD):
        next(events, None)
    start, steps = clock(), 0
    while steps < STEPS and next(events, None) is not None:
        steps += 1
    took = clock() - start
    for _ in events:
        pass
    if not steps:
        raise UsageError("the traced answer ends before there is a step; give --tokens more")
    return steps, took


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
