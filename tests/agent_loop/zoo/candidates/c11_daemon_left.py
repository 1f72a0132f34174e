"""C11: leaves a process behind that outlives a launch, and is quick if one has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest

MARK = b"daemon-of-the-zoo"


class Cheat(Honest):
    def __init__(self, deployment: Deployment, arms: Sequence[ArmSpec]) -> None:
        super().__init__(deployment, arms)
        self.was_there = self.there()
        code = "import time; time.sleep(900)"
        subprocess.Popen([sys.executable, "-S", "-c", code, MARK.decode()], start_new_session=True)

    def there(self) -> bool:
        places = Path("/proc").glob("[0-9]*/cmdline")
        return any(MARK in place.read_bytes() for place in places)

    def quick(self, request: DecodeRequest) -> bool:
        return self.was_there


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
