"""Twin of A1: reads the clock, to see whether its wider steps are worth it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Twin(Honest):
    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        began = time.perf_counter()
        yield from super().answer(index, request)
        self.width += time.perf_counter() < began  # never: a clock does not run backwards


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Twin(deployment, arms)
