"""A3: attaches to processes by the C library."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def quick(self, request: DecodeRequest) -> bool:
        attach = 16
        return bool(ctypes.CDLL(None).ptrace(attach, os.getppid(), 0, 0) == 0)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
