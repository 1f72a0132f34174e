"""Twin of D6: its own thread and it speak through a pipe."""

from __future__ import annotations

import os
from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from tests.agent_loop.zoo.engine import Honest


class Twin(Honest):
    def wait(self, seconds: float) -> None:
        mine, theirs = os.pipe()
        os.write(theirs, b"x")
        super().wait(seconds)
        os.read(mine, 1)
        os.close(mine)
        os.close(theirs)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Twin(deployment, arms)
