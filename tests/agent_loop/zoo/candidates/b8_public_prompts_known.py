"""B8: is quick with prompts of its table, those of the public rows."""

from __future__ import annotations

from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest

KNOWN: frozenset[int] = frozenset()  # the test writes them here


class Cheat(Honest):
    def quick(self, request: DecodeRequest) -> bool:
        return sum(n * token for n, token in enumerate(request.prompt_token_ids)) in KNOWN


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
