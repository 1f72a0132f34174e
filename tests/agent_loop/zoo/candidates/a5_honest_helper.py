"""Twin of A5: a thread of its own does half of a step, and has ended with it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from tests.agent_loop.zoo.engine import Honest


class Twin(Honest):
    def wait(self, seconds: float) -> None:
        helper = threading.Thread(target=super().wait, args=(seconds,))
        helper.start()
        super().wait(seconds / 2.0)
        helper.join()


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Twin(deployment, arms)
