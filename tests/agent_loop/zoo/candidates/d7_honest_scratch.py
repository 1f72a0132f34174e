"""Twin of D7: keeps a scratch file where it may, and removes it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from tests.agent_loop.zoo.engine import Honest


class Twin(Honest):
    def wait(self, seconds: float) -> None:
        with tempfile.TemporaryFile() as scratch:
            scratch.write(b"x" * 1000)
            super().wait(seconds)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Twin(deployment, arms)
