"""D10: right on the first requests of a launch, wrong afterwards, when it believes nobody checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    served = 0

    def ids(self, request: DecodeRequest) -> list[int]:
        found = super().ids(request)
        return found if self.served <= 2 else [token ^ 1 for token in found]

    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        self.served += 1
        yield from super().answer(index, request)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
