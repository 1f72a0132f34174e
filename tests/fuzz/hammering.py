"""Properties tried on much bad input: a little in every run of the suite, a lot in ``nox -s fuzz``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning
from hypothesis.strategies import SearchStrategy

from harness.errors import HarnessError
from reference_mechanisms.errors import MechanismError

DEEP = int(os.environ.get("SPECPILOT_FUZZ_EXAMPLES", "3000"))
OURS = (HarnessError, MechanismError)

quick_and_deep = pytest.mark.parametrize(
    "deep", [pytest.param(False, id="quick"), pytest.param(True, id="deep", marks=pytest.mark.slow)]
)


def hammer(check: Callable[..., object], *inputs: SearchStrategy[Any], deep: bool, quick: int = 60) -> None:
    """Call `check` with many inputs; the first that breaks it is made small and shown.

    Args:
        check: fails on what must not happen.
        inputs: strategies, one an argument.
        deep: other inputs each time, many; else the same few.
        quick: how many those are.
    """
    profile = settings(
        max_examples=DEEP if deep else quick,
        derandomize=not deep,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if deep else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )

    def one(arguments: tuple[Any, ...]) -> None:
        check(*arguments)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)  # long inputs are shown in full, all the same
        profile(given(st.tuples(*inputs))(one))()


def refuses_or_reads(read: Callable[[], object], names: str = "") -> object:
    """What `read` gives; None where it refuses in our own words, which name what was read."""
    try:
        return read()
    except OURS as refusal:
        said, kind = str(refusal), type(refusal).__name__
    assert said.strip(), f"{kind} says nothing"
    assert names in said, f"{said!r} does not name {names!r}"
    return None
