"""Field by field, where two records differ."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

TOLERANCE = 1e-6  # relative: summation order may differ between numpy versions


def differences(claimed: object, found: object, path: str, source: str) -> Iterator[str]:
    """One line for each leaf that differs, with its path; floats are compared to six digits.

    Args:
        claimed: value of the report.
        found: value derived again.
        path: name of the value.
        source: how it was derived, in words: "the responses give".
    """
    for where, told, derived in _leaves(msgspec.to_builtins(claimed), msgspec.to_builtins(found), path):
        yield f"`{where}` is {told!r}, {source} {derived!r}"


def _leaves(claimed: object, found: object, path: str) -> Iterator[tuple[str, object, object]]:
    if isinstance(claimed, dict) and isinstance(found, dict):
        for key in sorted(claimed.keys() | found.keys()):
            yield from _leaves(claimed.get(key), found.get(key), f"{path}.{key}")
    elif isinstance(claimed, list | tuple) and isinstance(found, list | tuple) and len(claimed) == len(found):
        for index, (told, derived) in enumerate(zip(claimed, found, strict=True)):
            yield from _leaves(told, derived, f"{path}[{index}]")
    elif not _equal(claimed, found):
        yield path, claimed, found


def _equal(claimed: object, found: object) -> bool:
    numbers = isinstance(claimed, int | float) and isinstance(found, int | float)
    if numbers and not isinstance(claimed, bool) and not isinstance(found, bool):
        return math.isclose(float(claimed), float(found), rel_tol=TOLERANCE, abs_tol=1e-12)  # type: ignore[arg-type]
    return type(claimed) is type(found) and claimed == found
