"""The guest's process: ``python -m agent_loop.guest.host``. Everything in it is the candidate's.

Reads orders on standard input, answers on the descriptor that was standard output; what the candidate
prints goes to standard error. It is never told which requests will be timed, and nothing is prepared.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import BinaryIO

from agent_loop.guest.wire import Answer, Opening, Order
from harness.codec import canonical_json, from_json
from harness.protocols import ServerSession, resolve
from harness.records import StepEvent


def main() -> int:
    """Serve until standard input ends."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    lines: BinaryIO = sys.stdin.buffer

    def tell(answer: Answer) -> None:
        channel.write(canonical_json(answer) + b"\n")
        channel.flush()

    opening = from_json(lines.readline(), Opening, "opening")
    sys.path.insert(0, opening.worktree)
    try:
        session = resolve(opening.arm.backend, "backend")(opening.deployment, [opening.arm])
    except Exception as error:  # noqa: BLE001 - a candidate may raise anything
        tell(Answer(kind="error", error=f"{type(error).__name__}: {error}"[:500]))
        return 1
    if isinstance(session, ServerSession):
        tell(Answer(kind="error", error="a guest must be a session that streams its events"))
        return 1
    tell(Answer(kind="ready", facts={"device": str(session.describe().get("device", ""))}))
    while line := lines.readline():
        _serve(session.stream, opening.arm.name, from_json(line, Order, "order"), tell)
    session.close()
    return 0


def _serve(
    stream: Callable[..., Iterable[StepEvent]], arm: str, order: Order, tell: Callable[[Answer], None]
) -> None:
    try:
        for event in stream(arm, order.requests):
            tell(Answer(kind="event", event=event))
    except Exception as error:  # noqa: BLE001 - a candidate may raise anything
        tell(Answer(kind="error", error=f"{type(error).__name__}: {error}"[:500]))
        return
    tell(Answer(kind="end"))


if __name__ == "__main__":
    sys.exit(main())
