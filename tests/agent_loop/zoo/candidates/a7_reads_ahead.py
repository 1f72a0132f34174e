"""A7: looks for the next request while it serves this one, to do all at once."""

from __future__ import annotations

import select
from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def quick(self, request: DecodeRequest) -> bool:
        waiting, _, _ = select.select([0], [], [], 0.0)
        return bool(waiting)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
