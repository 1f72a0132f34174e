"""Checks that every backend makes of its arms' parameters; the messages name the arm and the field."""

from __future__ import annotations

from collections.abc import Iterable

from harness.errors import UsageError
from harness.plan import ArmSpec


def refuse_unknown(arm: ArmSpec, known: Iterable[str], taker: str) -> None:
    """Hold that an arm has no parameter that its backend does not know.

    Args:
        arm: the arm.
        known: names the backend takes.
        taker: what takes them, for the message: "a server".

    Raises:
        UsageError: naming the first unknown parameter.
    """
    names = tuple(known)
    unknown = sorted(set(arm.params) - set(names))
    if unknown:
        raise UsageError(
            f"arms[{arm.name}].params: `{unknown[0]}` is unknown; {taker} takes {', '.join(names)}"
        )
