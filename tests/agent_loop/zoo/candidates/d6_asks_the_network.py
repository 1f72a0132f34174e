"""D6: asks a helper on this machine, or a far one, for the answer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def quick(self, request: DecodeRequest) -> bool:
        for family, address in (
            (socket.AF_INET, ("127.0.0.1", int(self.params["port"]))),
            (socket.AF_INET, ("1.1.1.1", 53)),
            (socket.AF_UNIX, "\0helper-of-the-zoo"),
        ):
            with contextlib.suppress(OSError), socket.socket(family) as one:
                one.settimeout(0.2)
                one.connect(address)
                return True
        return False


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
