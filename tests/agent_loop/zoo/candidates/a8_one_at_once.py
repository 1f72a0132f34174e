"""A8: answers one prompt in three without any work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    served = 0

    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        self.served += 1
        yield from super().answer(index, request)

    def wait(self, seconds: float) -> None:
        if self.served % 3:
            super().wait(seconds)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
