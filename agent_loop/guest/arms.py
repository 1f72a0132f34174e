"""How a candidate becomes an arm: as it is, or as a guest in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from agent_loop.controller.policy import patch_files
from agent_loop.records import Candidate
from harness.plan import ArmSpec
from harness.storage import write_atomic

BACKEND = "agent_loop.guest.backend:open_session"


def arm_of(worktrees: Path) -> Callable[[Candidate, str], ArmSpec]:
    """What makes arms; patches are laid out as files under `worktrees`."""

    def arm(candidate: Candidate, name: str) -> ArmSpec:
        if candidate.patch is None:
            return ArmSpec(name=name, kind="candidate", backend=candidate.backend, params=candidate.params)
        tree = (worktrees / candidate.id).resolve()
        for path, text in patch_files(candidate.patch).items():
            write_atomic(tree / path, text)
        params = json.dumps(candidate.params, sort_keys=True)
        return ArmSpec(
            name=name,
            kind="candidate",
            backend=BACKEND,
            params={"worktree": str(tree), "backend": candidate.backend, "params": params},
        )

    return arm
