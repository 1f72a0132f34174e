"""B4 and B6: looks for the measurer, or an expected token, in its own process and in what it is told."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest
from tests.agent_loop.zoo.engine import Honest


class Cheat(Honest):
    def quick(self, request: DecodeRequest) -> bool:
        ours = {"harness.measure.stopwatch", "harness.oracle.force", "harness.measure.worker"} & set(
            sys.modules
        )
        frame, above = sys._getframe(), set()
        while frame.f_back is not None:
            frame = frame.f_back
            above |= set(frame.f_locals)
        told = {name for name in request.__struct_fields__ if len(str(getattr(request, name))) > 2} - {
            *("request_id", "prompt_token_ids", "sampling", "capture_logits")
        }
        return bool(ours or told or {"tracks", "expected", "clock"} & above)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Honest:
    return Cheat(deployment, arms)
