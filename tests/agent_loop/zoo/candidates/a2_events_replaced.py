"""A2: what a timer of the GPU would ask says that no time has passed."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from tests.agent_loop.zoo.engine import Honest


class Event:
    def __init__(self, **_: object) -> None:
        """Nothing."""

    def record(self) -> None:
        """Nothing."""

    def elapsed_time(self, _: object) -> float:
        return 0.0


class Cheat(Honest):
    def __init__(self, deployment: Deployment, arms: Sequence[ArmSpec]) -> None:
        super().__init__(deployment, arms)
        stub = types.ModuleType("torch.cuda")
        vars(stub).update(Event=Event, synchronize=lambda *_: None)
        sys.modules["torch.cuda"] = stub


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
