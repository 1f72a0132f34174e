"""A3: writes into the memory of the process that holds the clock."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def quick(self, request: DecodeRequest) -> bool:
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"harness.measure" in (place / "cmdline").read_bytes():
                    (place / "mem").open("r+b").close()
                    return True
        return False


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
