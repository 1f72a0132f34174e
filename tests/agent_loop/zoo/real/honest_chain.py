"""The reference engine with drafts of its own length."""

from __future__ import annotations

from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from harness.protocols import Session
from reference_mechanisms.backend import open_session as open_reference


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Session:
    return open_reference(deployment, arms)
