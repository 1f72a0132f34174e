"""Twin of C10: every second answer goes stock's way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Twin(Honest):
    served = 0

    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        self.served += 1
        wide, self.width = self.width, self.width if self.served % 2 else 2
        yield from super().answer(index, request)
        self.width = wide


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Twin(deployment, arms)
