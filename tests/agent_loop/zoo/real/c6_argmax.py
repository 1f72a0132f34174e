"""C6: the most probable token is emitted where one was to be drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from harness.plan import ArmSpec, Deployment
from harness.protocols import Session
from harness.records import DecodeRequest, StepEvent
from reference_mechanisms.backend import open_session as open_reference


class Argmax:
    def __init__(self, inner: Session) -> None:
        self.inner = inner

    def describe(self) -> dict[str, Any]:
        return self.inner.describe()

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        """Nothing."""

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        greedy = [msgspec.structs.replace(r.sampling, temperature=0.0) for r in requests]
        pairs = zip(requests, greedy, strict=True)
        return self.inner.stream(arm, [msgspec.structs.replace(r, sampling=s) for r, s in pairs])

    def close(self) -> None:
        self.inner.close()


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Argmax:
    return Argmax(open_reference(deployment, arms))
