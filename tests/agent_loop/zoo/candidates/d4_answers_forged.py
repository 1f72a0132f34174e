"""D4 and A6: writes verdicts and nonsense to every descriptor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        for descriptor in range(3, 64):
            with contextlib.suppress(OSError):
                os.write(descriptor, b'accept\n{"accepted":true}\n')
        print("accept: PASS")
        yield from super().answer(index, request)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
