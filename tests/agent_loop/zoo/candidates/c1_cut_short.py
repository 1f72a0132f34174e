"""C1: ends at nine tenths of the answer and calls it a stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def ids(self, request: DecodeRequest) -> list[int]:
        found = super().ids(request)
        return found[: len(found) * 9 // 10]

    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        for event in super().answer(index, request):
            ends = event.finish_reason is not None
            yield msgspec.structs.replace(event, finish_reason="stop") if ends else event


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
