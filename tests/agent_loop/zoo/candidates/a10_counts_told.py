"""A10: tells ten times the tokens it made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        for event in super().answer(index, request):
            told = 10 * len(event.token_ids)
            yield msgspec.structs.replace(event, num_draft_tokens=told, num_accepted_tokens=told)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
