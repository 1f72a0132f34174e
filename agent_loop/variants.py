"""Arms that change what the deployment says of the target's weights, as a backend.

All arms of a run share one deployment, so a search could not turn its weights format like other knobs. An arm
here names the backend that runs it (`engine`) and the format; arms that agree in both share a session. The
tokens are checked like any other's: by stock as the deployment says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from harness.errors import UsageError
from harness.plan import ArmSpec, Deployment
from harness.protocols import ServerSession, Session, resolve
from harness.records import DecodeRequest, StepEvent

OWN = ("engine", "weights_format")  # the others are the engine's
FORMATS = ("bf16", "weight12")  # of `Deployment.weights_format`
ALL_OF = ("row_invariant", "seeded")  # facts that hold only where they hold for every session


class VariantSession:
    """See `harness.protocols.Session`."""

    def __init__(self, formats: Mapping[str, str], sessions: Mapping[str, Session]) -> None:
        """Take over open sessions, by arm."""
        self._formats = dict(formats)
        self._sessions = dict(sessions)

    def describe(self) -> dict[str, Any]:
        """See `Session`: what the engines say, by arm where they say it so, and the format of each arm."""
        told = [session.describe() for session in self._distinct()]
        merged: dict[str, Any] = {}
        for one in told:
            for name, value in one.items():
                known = merged.setdefault(name, value)
                if isinstance(value, Mapping) and isinstance(known, Mapping):
                    merged[name] = {**known, **value}
        for name in ALL_OF:
            if name in merged:
                merged[name] = all(one.get(name) for one in told)
        return {**merged, "weights_formats": self._formats}

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        """See `Session`."""
        self._sessions[arm].prepare(arm, requests)

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        """See `Session`."""
        return self._sessions[arm].stream(arm, requests)

    def close(self) -> None:
        """See `Session`."""
        for session in self._distinct():
            session.close()

    def _distinct(self) -> list[Session]:
        return list({id(one): one for one in self._sessions.values()}.values())


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> VariantSession:
    """Open a session for each engine and format.

    Args:
        deployment: its target, device and limits hold for every arm.
        arms: `params`: `engine` ("module:function"), `weights_format`, and the engine's own.

    Raises:
        UsageError: a parameter is missing or no format, or the engine is a server or refuses an arm.
    """
    groups: dict[tuple[str, str], list[ArmSpec]] = {}
    for arm in arms:
        engine, form = arm.params.get("engine"), arm.params.get("weights_format")
        if not isinstance(engine, str) or form not in FORMATS:
            raise UsageError(
                f"arms[{arm.name}].params: needs `engine` ('module:function') and `weights_format`, one of "
                f"{', '.join(FORMATS)}"
            )
        params = {name: value for name, value in arm.params.items() if name not in OWN}
        inner = msgspec.structs.replace(arm, backend=engine, params=params)
        groups.setdefault((engine, str(form)), []).append(inner)
    sessions: dict[str, Session] = {}
    formats: dict[str, str] = {}
    try:
        for (engine, form), inner_arms in groups.items():
            changed = msgspec.structs.replace(deployment, weights_format=form)
            session = resolve(engine, f"arms[{inner_arms[0].name}].params.engine")(changed, inner_arms)
            if isinstance(session, ServerSession):
                session.close()
                raise UsageError(
                    f"arms[{inner_arms[0].name}].params: `engine` must stream its events, no server"
                )
            sessions |= {arm.name: session for arm in inner_arms}
            formats |= {arm.name: form for arm in inner_arms}
    except BaseException:
        VariantSession(formats, sessions).close()
        raise
    return VariantSession(formats, sessions)
