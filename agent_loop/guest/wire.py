"""What the measurer and a guest say to each other: one JSON line a message, over the guest's own pipes.

Nothing a guest says is believed: events carry tokens and counts, no times, and every token is checked.
"""

from __future__ import annotations

from typing import Any, Literal

from harness.codec import Record
from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent

LINE_BYTES = 1 << 20  # of a message; a longer one is a fault


class Opening(Record, frozen=True):
    """The first line to a guest."""

    deployment: Deployment
    arm: ArmSpec  # backend and parameters are the candidate's own
    worktree: str  # comes first on the guest's import path


class Order(Record, frozen=True):
    """Decode these requests as one batch."""

    requests: tuple[DecodeRequest, ...]


class Answer(Record, frozen=True):
    """A line from a guest."""

    kind: Literal["ready", "event", "end", "error"]
    facts: dict[str, Any] = {}
    event: StepEvent | None = None
    error: str = ""
