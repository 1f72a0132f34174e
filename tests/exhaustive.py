"""Parameters of a test that tries many: a few in every run, the others with the slow tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest


def slow_but(kept: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """The values as parameters; those that are not among the kept ones run in `nox -s tests-slow`."""
    found = list(values)
    missing = [one for one in kept if one not in found]
    assert not missing, f"{missing} are no parameters"
    return [one if one in kept else pytest.param(*as_tuple(one), marks=pytest.mark.slow) for one in found]


def slow_but_pairs(
    kept: Collection[tuple[str, str]], names: Iterable[str], values: Mapping[str, Any]
) -> list[Any]:
    """Every name with every value; pairs that are not among the kept ones run in `nox -s tests-slow`."""
    pairs = [(name, key) for name in names for key in values]
    missing = [pair for pair in kept if pair not in pairs]
    assert not missing, f"{missing} are no pairs"
    return [
        pytest.param(
            name, values[key], id=f"{name}-{key}", marks=() if (name, key) in kept else pytest.mark.slow
        )
        for name, key in pairs
    ]


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if type(value) is tuple else (value,)
