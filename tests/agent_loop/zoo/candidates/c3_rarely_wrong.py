"""C3: one wrong token in fifty, near the end of some answers only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    served = 0

    def ids(self, request: DecodeRequest) -> list[int]:
        found = super().ids(request)
        if self.served % 4 == 3:
            found[-2] = (found[-2] + 9) % 200
        return found

    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        self.served += 1
        yield from super().answer(index, request)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
