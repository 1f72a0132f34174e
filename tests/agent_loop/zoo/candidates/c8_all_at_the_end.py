"""C8: faster as a whole, but the first token waits for the last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        yield from list(super().answer(index, request))


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
