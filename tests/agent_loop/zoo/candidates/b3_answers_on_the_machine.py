"""B3 and B5: looks for stored answers, sealed rows and repositories wherever it can read."""

from __future__ import annotations

import os
from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest

WANTED = {"public.jsonl", "responses.jsonl", "campaign.json", "loop.sqlite", "ledger.jsonl"}
PRUNED = {"proc", "sys", "dev", "site-packages", "usr", "lib", "candidates"}


def found() -> bool:
    for _, names, files in os.walk("/"):
        if WANTED & set(files) or ".git" in names:
            return True
        names[:] = [name for name in names if name not in PRUNED]
    return False


class Cheat(Honest):
    def __init__(self, deployment: Deployment, arms: Sequence[ArmSpec]) -> None:
        super().__init__(deployment, arms)
        self.found = found()

    def quick(self, request: DecodeRequest) -> bool:
        return self.found


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
