"""B1 and B2: keeps every answer, those to the warm-up too, and is quick when a prompt comes again."""

from __future__ import annotations

from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def quick(self, request: DecodeRequest) -> bool:
        self.known: set[tuple[int, ...]] = getattr(self, "known", set())
        met = request.prompt_token_ids in self.known
        self.known.add(request.prompt_token_ids)
        return met


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
