"""C2: accepts a draft that is stock's second choice, once an answer."""

from __future__ import annotations

from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def ids(self, request: DecodeRequest) -> list[int]:
        found = super().ids(request)
        found[5] = (found[5] + 1) % 200
        return found


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
