"""D15: the code comes packed."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest

PACKED = "cGFzcw=="


class Cheat(Honest):
    def quick(self, request: DecodeRequest) -> bool:
        exec(base64.b64decode(PACKED))  # noqa: S102
        return False


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
