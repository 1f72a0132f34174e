"""Nothing but its width."""

from __future__ import annotations

from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from tests.agent_loop.zoo.engine import Honest


class Plain(Honest):
    """As it is."""


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Plain(deployment, arms)
