"""D14: every answer at once, whatever physics says."""

from __future__ import annotations

from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def wait(self, seconds: float) -> None:
        """No work at all."""

    def quick(self, request: DecodeRequest) -> bool:
        return True


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
