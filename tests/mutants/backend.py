"""The reference engine with one decision changed: arm parameter `mutant`, and `flaw` for its drafter."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.plan import ArmSpec, Deployment
from reference_mechanisms.backend import ReferenceSession
from reference_mechanisms.backend import open_session as open_reference
from tests.mutants.zoo import CLEAN, WRAPS, ZOO

OWN = ("mutant", "flaw")


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> ReferenceSession:
    """A session whose arms are mutants."""
    known = {**ZOO, **CLEAN}
    plain = [
        msgspec.structs.replace(arm, params={k: v for k, v in arm.params.items() if k not in OWN})
        for arm in arms
    ]
    return open_reference(
        deployment,
        plain,
        rules={arm.name: known[str(arm.params["mutant"])].rules for arm in arms if "mutant" in arm.params},
        wrap={arm.name: WRAPS[str(arm.params["flaw"])] for arm in arms if "flaw" in arm.params},
    )
