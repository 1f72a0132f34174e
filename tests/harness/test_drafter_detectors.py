from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from harness.drafter_detectors import detection_warnings, detections
from harness.records import Response
from tests.harness.stats.build import with_steps

TOLD: dict[str, Any] = {"engine": {"checkpoints": {"stock": "somewhere"}}}
HEALTHY = [(7, 2, 3), (7, 0, 1), (7, 7, 8), (7, 1, 2)]
BEHIND_ZERO = [(7, 1, 2), (7, 0, 1), (7, 1, 2), (7, 1, 2)]
HEADLESS = [(7, 0, 1)] * 4


def replies(
    steps: Sequence[tuple[int, int, int]], times: int = 30, prompts: Sequence[int] = (10,)
) -> list[Response]:
    """One response a prompt length."""
    return [
        msgspec.structs.replace(with_steps(list(steps) * times, f"p{n}"), prompt_tokens=length)
        for n, length in enumerate(prompts)
    ]


def found(responses: Sequence[Response], told: dict[str, Any] = TOLD) -> dict[str, bool | None]:
    return {one.detector: one.found for one in detections(responses, told)}


def test_a_healthy_drafter_is_not_named() -> None:
    assert found(replies(HEALTHY, times=120)) == {
        "head not shared": False,
        "rows behind the first": False,
        "acceptance over the context": False,
    }


@pytest.mark.parametrize(
    ("steps", "name"),
    [(HEADLESS, "head not shared"), (BEHIND_ZERO, "rows behind the first")],
    ids=["headless", "nothing behind the first"],
)
def test_a_broken_drafter_is_named_and_warned_of(steps: list[tuple[int, int, int]], name: str) -> None:
    told = detections(replies(steps), TOLD)
    assert [one.detector for one in told if one.found] == [name]
    assert [line.split("(")[1].split(")")[0] for line in detection_warnings(told)] == [name]


def test_acceptance_that_falls_with_the_context_is_named() -> None:
    short, long = replies(HEALTHY, prompts=[10, 11]), replies(HEADLESS, prompts=[3000, 3001])
    assert found([*short, *long])["acceptance over the context"] is True
    even = [*short, *replies(HEALTHY, prompts=[3000, 3001])]
    assert found(even)["acceptance over the context"] is False
    rising = [*replies(HEADLESS, prompts=[10, 11]), *replies(HEALTHY, prompts=[3000, 3001])]
    assert found(rising)["acceptance over the context"] is False


def test_too_few_steps_give_no_verdict() -> None:
    assert set(found(replies(HEADLESS, times=24)).values()) == {None}
    assert found(replies([(1, 0, 1)] * 100, times=2))["rows behind the first"] is None


def test_repetitions_count_for_nothing() -> None:
    loop = with_steps(BEHIND_ZERO * 50)
    loop = msgspec.structs.replace(loop, token_ids=(5,) * len(loop.token_ids))
    assert set(found([loop]).values()) == {None}


def test_only_arms_with_a_checkpoint_are_looked_at() -> None:
    assert found(replies(HEADLESS), {"engine": {"drafters": {"stock": "ngram"}}}) == {}


def test_what_the_backend_finds_in_the_weights_is_passed_on() -> None:
    finding = {"detector": "norms", "found": True, "detail": "all are 1"}
    told = {"engine": {**TOLD["engine"], "drafter_findings": {"stock": [finding]}}}
    assert found([], told)["norms"] is True
