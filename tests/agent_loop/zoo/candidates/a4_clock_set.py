"""A4: sets the clock of the machine, and asks for another library in every child."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def quick(self, request: DecodeRequest) -> bool:
        os.environ["LD_PRELOAD"] = "/nowhere/faketime.so"
        with contextlib.suppress(OSError):
            time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME))
            return True
        return False


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
