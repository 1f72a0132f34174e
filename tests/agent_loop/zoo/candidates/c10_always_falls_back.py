"""C10: the mechanism fails on every request, and stock's way is taken instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        try:
            raise NotImplementedError("the fast way")
        except NotImplementedError:
            self.width = 1
            for event in super().answer(index, request):
                yield msgspec.structs.replace(event, num_draft_tokens=0, num_accepted_tokens=0)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
