"""A small world with known tokens: a stock engine whose work is sleep or sums, and the honest guest.

A step takes as long as one of stock's whatever its width, as on an engine that reads its weights once a
step; a guest of the same width is a little slower than stock. So a candidate gains by honest width, or by
what it is not to have: `quick` is what a cheat hopes to be.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from tests.sealed_evals.campaign.engine import next_token

STEP_SECONDS = 0.012
PREFILL_SECONDS = 0.012
SLOWER = 0.005  # of a guest's step: one without an advantage must be seen to have none
SUMS = 20_000  # of a tenth of a step whose work is sums
WIDTH = 2  # of stock
HERE = "tests.agent_loop.zoo.engine"


class Honest:
    """Emits stock's tokens, `width` at a time. Cheats override one method."""

    slower = SLOWER

    def __init__(self, deployment: Deployment, arms: Sequence[ArmSpec]) -> None:
        self.deployment = deployment
        self.params = dict(arms[0].params)
        self.width = int(self.params.get("width", WIDTH))

    def describe(self) -> dict[str, Any]:
        return {"engine": "known", "device": "cpu"}

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        for index, request in enumerate(requests):
            yield from self.answer(index, request)

    def answer(self, index: int, request: DecodeRequest) -> Iterator[StepEvent]:
        ids, width = self.ids(request), len(self.ids(request)) if self.quick(request) else self.width
        self.wait(PREFILL_SECONDS)
        yield StepEvent(index=index, kind="prefill", token_ids=tuple(ids[:1]))
        for place in range(1, len(ids), width):
            self.wait(STEP_SECONDS + self.slower)
            block = ids[place : place + width]
            yield StepEvent(
                index=index,
                kind="step",
                token_ids=tuple(block),
                num_draft_tokens=width,
                num_accepted_tokens=len(block) - 1,
                finish_reason="length" if place + width >= len(ids) else None,
            )

    def ids(self, request: DecodeRequest) -> list[int]:
        """What is emitted."""
        return [next_token(request.prompt_token_ids, place) for place in range(request.sampling.max_tokens)]

    def quick(self, request: DecodeRequest) -> bool:
        """Whether everything is known beforehand: honest code never knows."""
        return False

    def wait(self, seconds: float) -> None:
        """The work."""
        if self.params.get("work") == "sums":
            for _ in range(round(10.0 * seconds / STEP_SECONDS)):
                sum(range(SUMS))
        else:
            time.sleep(seconds)


class Stock(Honest):
    """In the measurer's own process, as stock is."""

    slower = 0.0

    def __init__(self, deployment: Deployment, arms: Sequence[ArmSpec]) -> None:
        super().__init__(deployment, arms)
        self.arms = {arm.name: dict(arm.params) for arm in arms}

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        self.params = self.arms[arm]
        self.width = int(self.params.get("width", WIDTH))
        yield from super().stream(arm, requests)


def open_stock(deployment: Deployment, arms: Sequence[ArmSpec]) -> Stock:
    return Stock(deployment, arms)
