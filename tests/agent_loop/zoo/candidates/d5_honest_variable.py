"""Twin of D5: reads how many threads it may use."""

from __future__ import annotations

import os
from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from tests.agent_loop.zoo.engine import Honest


class Twin(Honest):
    def __init__(self, deployment: Deployment, arms: Sequence[ArmSpec]) -> None:
        super().__init__(deployment, arms)
        self.threads = int(os.environ.get("OMP_NUM_THREADS", "1"))


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Twin(deployment, arms)
