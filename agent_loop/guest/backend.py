"""Guests as a backend of the harness: one process an arm, the measurer's clock outside of it.

Arm parameters: worktree (folder of the patch), backend ("module:function" in it), params (JSON of the
candidate's own parameters). `prepare` is kept from guests: whoever knows what will be timed can compute
it beforehand.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_loop.guest.wire import LINE_BYTES, Answer, Opening, Order
from harness.codec import canonical_json, from_json
from harness.environment import ROOT
from harness.errors import BackendError, DataError, UsageError
from harness.plan import ArmSpec, Deployment, Param
from harness.records import DecodeRequest, StepEvent

PASSED_ON = ("PATH", "HOME", "LANG", "OMP_NUM_THREADS", "SPECPILOT_CACHE_DIR", "CUDA_VISIBLE_DEVICES")


class GuestSession:
    """See `harness.protocols.Session`."""

    def __init__(self, deployment: Deployment, arms: Sequence[ArmSpec]) -> None:
        """Start a process for every arm and wait until it is ready.

        Raises:
            UsageError: a parameter is missing, or a candidate cannot be opened; the arm is named.
        """
        self._guests: dict[str, subprocess.Popen[bytes]] = {}
        self._devices: dict[str, str] = {}
        try:
            for arm in arms:
                opening = _opening(deployment, arm)
                self._guests[arm.name] = _start(Path(opening.worktree))
                self._send(arm.name, opening)
            for arm in arms:
                answer = self._hear(arm.name)
                if answer.kind != "ready":
                    raise UsageError(f"arms[{arm.name}].params: the candidate does not open: {answer.error}")
                self._devices[arm.name] = str(answer.facts.get("device", ""))
        except BackendError as error:
            self.close()
            raise UsageError(str(error)) from None
        except BaseException:
            self.close()
            raise

    def describe(self) -> dict[str, Any]:
        """See `Session`; devices are what the guests say."""
        device = next(iter(self._devices.values()), "")
        return {"engine": "guest", "device": device, "isolation": "process"}

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        """See `Session`; nothing."""

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        """See `Session`."""
        self._send(arm, Order(requests=tuple(requests)))
        while True:
            answer = self._hear(arm)
            if answer.kind == "end":
                return
            if answer.kind != "event" or answer.event is None:
                raise BackendError(f"guest {arm}: {answer.error or 'spoke out of turn'}")
            yield answer.event

    def close(self) -> None:
        """See `Session`."""
        for guest in self._guests.values():
            _end(guest)

    def _send(self, arm: str, message: Opening | Order) -> None:
        pipe = self._guests[arm].stdin
        try:
            if pipe is not None:
                pipe.write(canonical_json(message) + b"\n")
                pipe.flush()
        except OSError:
            raise BackendError(f"guest {arm} has ended") from None

    def _hear(self, arm: str) -> Answer:
        pipe = self._guests[arm].stdout
        line = b"" if pipe is None else pipe.readline(LINE_BYTES)
        if not line.endswith(b"\n"):
            raise BackendError(f"arms[{arm}].params: the guest ended, or said too much at once")
        try:
            return from_json(line, Answer, f"guest {arm}")
        except DataError as error:
            raise BackendError(str(error)) from None


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> GuestSession:
    """See `harness.protocols.SessionFactory`."""
    return GuestSession(deployment, arms)


def _opening(deployment: Deployment, arm: ArmSpec) -> Opening:
    missing = [
        name for name in ("worktree", "backend", "params") if not isinstance(arm.params.get(name), str)
    ]
    if missing:
        raise UsageError(f"arms[{arm.name}].params: a guest needs `{missing[0]}`")
    params: Mapping[str, Param] = json.loads(str(arm.params["params"]))
    inner = ArmSpec(name=arm.name, kind=arm.kind, backend=str(arm.params["backend"]), params=dict(params))
    return Opening(deployment=deployment, arm=inner, worktree=str(arm.params["worktree"]))


def _start(worktree: Path) -> subprocess.Popen[bytes]:
    """The guest's process: no descriptor but its pipes, no environment but what is needed."""
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    paths = [str(ROOT), *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)]
    return subprocess.Popen(
        [sys.executable, "-m", "agent_loop.guest.host"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=worktree,
        env=environment | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
        close_fds=True,
        start_new_session=True,
    )


def _end(guest: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(guest.pid, signal.SIGKILL)
    guest.wait()
    for pipe in (guest.stdin, guest.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue
