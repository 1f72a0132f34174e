"""Says nothing any more after its first request."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    served = 0

    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        self.served += 1
        if self.served > 1:
            time.sleep(3600.0)
        yield from super().answer(index, request)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
