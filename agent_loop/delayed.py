"""A backend that is slower by a known factor: the positive control of a campaign.

An arm here names the engine that runs it and the share by which each of its events comes later. Whoever
measures must see that share; the tokens are the engine's own. It has weights of its own beside stock's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from harness.errors import UsageError
from harness.plan import ArmSpec, Deployment
from harness.protocols import ServerSession, Session, resolve
from harness.records import DecodeRequest, StepEvent

ENGINE, DELAY = "delayed_engine", "delay"  # parameters of an arm here; the others are the engine's
BACKEND = "agent_loop.delayed:open_session"
COARSE_S = 0.002  # what a sleep may oversleep


class DelayedSession:
    """See `harness.protocols.Session`."""

    def __init__(
        self,
        inner: Session,
        delays: Mapping[str, float],
        clock: Callable[[], float] = time.perf_counter,
        wait: Callable[[float], None] | None = None,
    ) -> None:
        """Take over an open session.

        Args:
            inner: runs the arms.
            delays: by arm, the share of an event's time that it comes later.
            clock: seconds.
            wait: for so many seconds; None waits on the processor, to the microsecond.
        """
        self._inner, self._delays, self._clock = inner, dict(delays), clock
        self._wait = wait or self._spin

    def describe(self) -> dict[str, Any]:
        """See `Session`: what the engine says, and the delay of each arm."""
        return {**self._inner.describe(), "delays": self._delays}

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        """See `Session`."""
        self._inner.prepare(arm, requests)

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        """See `Session`; every event is handed on late."""
        began = self._clock()
        for event in self._inner.stream(arm, requests):
            self._wait(self._delays[arm] * (self._clock() - began))
            yield event
            began = self._clock()

    def close(self) -> None:
        """See `Session`."""
        self._inner.close()

    def _spin(self, seconds: float) -> None:
        end = self._clock() + seconds
        if seconds > COARSE_S:
            time.sleep(seconds - COARSE_S)
        while self._clock() < end:
            pass


def params_of(stock: ArmSpec, delay: float) -> dict[str, Any]:
    """Of an arm that is stock, delayed."""
    return {**stock.params, ENGINE: stock.backend, DELAY: delay}


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> DelayedSession:
    """Open the engine of the arms.

    Raises:
        UsageError: an arm names no engine or no delay, they name several engines, or one that is a server.
    """
    delays, inner, engines = {}, [], set()
    for arm in arms:
        engine, delay = arm.params.get(ENGINE), arm.params.get(DELAY)
        if not isinstance(engine, str) or not isinstance(delay, int | float) or delay < 0.0:
            raise UsageError(
                f"arms[{arm.name}].params: needs `{ENGINE}` ('module:function') and `{DELAY}`, 0 or more"
            )
        params = {name: value for name, value in arm.params.items() if name not in (ENGINE, DELAY)}
        inner.append(msgspec.structs.replace(arm, backend=engine, params=params))
        delays[arm.name] = float(delay)
        engines.add(engine)
    if len(engines) > 1:
        raise UsageError(f"arms[{arms[0].name}].params: `{ENGINE}` must be one for all delayed arms")
    session = resolve(inner[0].backend, f"arms[{arms[0].name}].params.{ENGINE}")(deployment, inner)
    if isinstance(session, ServerSession):
        session.close()
        raise UsageError(f"arms[{arms[0].name}].params: `{ENGINE}` must stream its events, no server")
    return DelayedSession(session, delays)
