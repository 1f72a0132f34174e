"""Twin of C7: fails inside, tries again and serves every request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Twin(Honest):
    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        with contextlib.suppress(RuntimeError):
            raise RuntimeError("busy")
        yield from super().answer(index, request)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Twin(deployment, arms)
