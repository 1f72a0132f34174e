"""Guests as a backend of the harness: one sandbox an arm, the measurer's clock outside of it.

Arm parameters: worktree (folder of the patch), backend ("module:function" in it), params (JSON of the
candidate's own parameters). `prepare` is kept from guests: whoever knows what will be timed can compute
it beforehand. A guest runs only while it is asked; in between it is stopped with all that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agent_loop.guest.freezing import Freezer
from agent_loop.guest.hearing import Ear
from agent_loop.guest.wire import Answer, Opening, Order
from agent_loop.sandbox.profile import Limits, Profile, existing, interpreter_paths
from agent_loop.sandbox.room import open_room, require
from harness.codec import canonical_json, from_json
from harness.environment import OWN_PACKAGES, ROOT
from harness.errors import BackendError, DataError, UsageError
from harness.paths import user_cache
from harness.plan import ArmSpec, Deployment, Param
from harness.records import DecodeRequest, StepEvent

PASSED_ON = ("LANG", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
GUEST_BYTES = 64 << 30  # memory of a guest, where a cgroup holds it
OPEN_SECONDS = 600.0  # in which a guest must be ready
STEP_SECONDS = 120.0  # in which it must say its next event


class GuestSession:
    """See `harness.protocols.Session`."""

    foreign = True  # it may keep what it has met: `harness.measure.launch` warms it with other prompts

    def __init__(
        self, deployment: Deployment, arms: Sequence[ArmSpec], *, step_seconds: float = STEP_SECONDS
    ) -> None:
        """Start a process for every arm and wait until it is ready.

        Args:
            deployment: of the plan.
            arms: guests.
            step_seconds: in which a guest must say its next event.

        Raises:
            UsageError: a parameter is missing, or a candidate cannot be opened; the arm is named.
        """
        self._rooms = contextlib.ExitStack()
        self._guests: dict[str, subprocess.Popen[bytes]] = {}
        self._ears: dict[str, Ear] = {}
        self._freezers: dict[str, Freezer] = {}
        self._devices: dict[str, str] = {}
        try:
            for arm in arms:
                opening = _opening(deployment, arm)
                self._guests[arm.name] = self._start(arm.name, _profile(opening.worktree, deployment))
                self._send(arm.name, opening)
            for arm in arms:
                self._ears[arm.name] = self._listen(arm.name, OPEN_SECONDS)
                answer = self._hear(arm.name)
                if answer.kind != "ready":
                    raise UsageError(f"arms[{arm.name}].params: the candidate does not open: {answer.error}")
                self._devices[arm.name] = str(answer.facts.get("device", ""))
                self._ears[arm.name] = self._listen(arm.name, step_seconds)
            for arm in arms:
                self._freezers[arm.name] = Freezer(self._guests[arm.name].pid)
                self._freezers[arm.name].freeze()
        except BackendError as error:
            self.close()
            raise UsageError(str(error)) from None
        except BaseException:
            self.close()
            raise

    def describe(self) -> dict[str, Any]:
        """See `Session`; devices are what the guests say."""
        device = next(iter(self._devices.values()), "")
        return {"engine": "guest", "device": device, "isolation": require()}

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        """See `Session`; nothing."""

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        """See `Session`."""
        self._freezers[arm].thaw()
        try:
            self._send(arm, Order(requests=tuple(map(_nameless, requests))))
            while True:
                answer = self._hear(arm)
                if answer.kind == "end":
                    return
                if answer.kind != "event" or answer.event is None:
                    raise BackendError(f"guest {arm}: {answer.error or 'spoke out of turn'}")
                yield answer.event
        finally:
            self._freezers[arm].freeze()

    def close(self) -> None:
        """See `Session`."""
        self._rooms.close()
        for guest in self._guests.values():
            for pipe in (guest.stdin, guest.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    def _start(self, arm: str, profile: Profile) -> subprocess.Popen[bytes]:
        """A guest in a room of its own.

        Raises:
            UsageError: no sandbox works here; a candidate's code is then not run at all.
        """
        try:
            room = self._rooms.enter_context(open_room(profile))
        except UsageError as error:
            raise UsageError(f"arms[{arm}].params: {error}") from None
        return room.start(
            [sys.executable, "-m", "agent_loop.guest.host"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def _send(self, arm: str, message: Opening | Order) -> None:
        pipe = self._guests[arm].stdin
        try:
            if pipe is not None:
                pipe.write(canonical_json(message) + b"\n")
                pipe.flush()
        except OSError:
            raise BackendError(f"guest {arm} has ended") from None

    def _listen(self, arm: str, patience_s: float) -> Ear:
        pipe = self._guests[arm].stdout
        return Ear(-1 if pipe is None else pipe.fileno(), arm, patience_s)

    def _hear(self, arm: str) -> Answer:
        """The next answer; a guest that breaks off is ended, so that it costs its patience once."""
        try:
            line = self._ears[arm].line()
        except BackendError:
            self._guests[arm].kill()
            raise
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


def _nameless(request: DecodeRequest) -> DecodeRequest:
    """Without its id, which says whether the row is a public one."""
    return msgspec.structs.replace(request, request_id="")


def _profile(worktree: str, deployment: Deployment) -> Profile:
    """What a guest may have: this Python, the packages, the target's files, its own patch.

    It can write nothing that lives on: an answer cannot be kept for the next launch.
    """
    target = deployment.target.path
    gpus = (0,) if deployment.device == "cuda" else ()
    site = [path for path in sys.path if path and Path(path).is_dir()]
    return Profile(
        readable=existing(
            [
                *interpreter_paths(),
                *(str(ROOT / package) for package in (*OWN_PACKAGES, "tests")),
                *(path for path in site if Path(path).resolve() != ROOT),
                str(user_cache()),
                *([target] if target is not None else []),
                worktree,
            ]
        ),
        environment={
            "PATH": "/usr/bin:/bin",
            "HOME": "/tmp",  # noqa: S108 - a tmpfs of its own
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SPECPILOT_CACHE_DIR": str(user_cache()),
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
        },
        gpus=gpus,
        limits=Limits(seconds=None, memory_bytes=GUEST_BYTES),
    )
