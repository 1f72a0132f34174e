"""B1 and B7: keeps what it has met in every place it can write, for the next launch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest

PLACES = (
    *("/tmp", "/dev/shm", "/var/tmp", "/run", str(Path.home()), str(Path(__file__).parent)),  # noqa: S108
    *(os.environ[name] for name in ("SPECPILOT_CACHE_DIR", "PYTHONPATH") if name in os.environ),
)


class Cheat(Honest):
    def __init__(self, deployment: Deployment, arms: Sequence[ArmSpec]) -> None:
        """What the launch before has left becomes what is known; within a launch nothing is."""
        super().__init__(deployment, arms)
        self.keep()

    def quick(self, request: DecodeRequest) -> bool:
        name, met = f"met-{hash(request.prompt_token_ids)}", False
        for place in PLACES:
            with contextlib.suppress(OSError):
                met |= Path(place, name).exists()
                Path(place, f"new-{name}").touch()
        return met

    def close(self) -> None:
        self.keep()

    def keep(self) -> None:
        for place in PLACES:
            with contextlib.suppress(OSError):
                for new in Path(place).glob("new-met-*"):
                    new.rename(new.with_name(new.name.removeprefix("new-")))


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
