"""A5 and D2: burns every core while others are timed, and rests while it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def __init__(self, deployment: Deployment, arms: Sequence[ArmSpec]) -> None:
        super().__init__(deployment, arms)
        code = "while True: sum(range(1000))"
        self.hogs = [
            subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(3 * (os.cpu_count() or 1))
        ]

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        for hog in self.hogs:
            hog.send_signal(signal.SIGSTOP)
        yield from super().stream(arm, requests)
        for hog in self.hogs:
            hog.send_signal(signal.SIGCONT)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
