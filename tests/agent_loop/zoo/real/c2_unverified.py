"""C2: the whole draft is taken, whatever the target says."""

from __future__ import annotations

from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from harness.protocols import Session
from reference_mechanisms.backend import open_session as open_reference
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.verification.chain import Verified


def take_all(draft: Sequence[int], choices: Sequence[int]) -> Verified:
    return Verified(len(draft), choices[-1])


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Session:
    return open_reference(deployment, arms, rules={arm.name: Rules(verify=take_all) for arm in arms})
