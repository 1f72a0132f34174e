"""Twin of D4: prints a log, and says "accept" in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Twin(Honest):
    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        print("accept: draft of", self.width, "tokens", file=sys.stderr)
        print("reject: nothing")
        yield from super().answer(index, request)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Twin(deployment, arms)
