"""Twin of B1: learns from what it has served how wide it should draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Twin(Honest):
    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        yield from super().answer(index, request)
        self.width = min(self.width + 1, 12)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Twin(deployment, arms)
