"""Broken drafters, told from the counts of a run: no error is ever raised, they are only slower.

For arms whose backend names a `checkpoint`. What can be told from the weights alone, the backend tells
itself (`drafter_findings`). Pure; a drafter that is found broken makes no run invalid, only warned of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.records import Response
from harness.results import Detection
from harness.stats.acceptance import conditional
from harness.stats.degenerate import degenerate

ENOUGH = 100  # verify steps a verdict rests on
HEAD_LEAST = 0.05  # share of first drafts that any head of the right target gets right
FIRST_FINE, REST_ZERO = 0.15, 0.02
CONTEXTS = (0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
FALLEN = 0.6  # part of the best accepted drafts a step that is left in the longest contexts


def detections(responses: Sequence[Response], told: Mapping[str, Any]) -> tuple[Detection, ...]:
    """What every detector says of every arm that has a trained drafter.

    Args:
        responses: of the run, all arms.
        told: what each backend told of itself, by its name.
    """
    found: list[Detection] = []
    for _, facts in sorted(told.items()):
        if not isinstance(facts, Mapping):
            continue
        checkpoints = facts.get("checkpoints") or {}
        findings = facts.get("drafter_findings") or {}
        for arm in sorted(checkpoints):
            good = [r for r in responses if r.arm == arm and r.status == "ok" and not degenerate(r.token_ids)]
            found += [_head(arm, good), _rows(arm, good), _context(arm, good)]
            found += [Detection(arm=arm, **finding) for finding in findings.get(arm, ())]
    return tuple(found)


def detection_warnings(found: Sequence[Detection]) -> Iterator[str]:
    """A line for each drafter that is found broken."""
    for one in found:
        if one.found:
            yield f"arm {one.arm}: its drafter looks broken ({one.detector}): {one.detail}"


def _head(arm: str, responses: Sequence[Response]) -> Detection:
    """A head that is not the target's gets next to nothing right, not even the first draft."""
    name, steps = "head not shared", [step for response in responses for step in response.steps]
    shares = conditional(steps)
    if len(steps) < ENOUGH or not shares:
        return _cannot(arm, name, len(steps))
    first = shares[0] or 0.0
    return Detection(
        arm=arm,
        detector=name,
        found=first < HEAD_LEAST,
        detail=f"{first:.1%} of first drafts accepted; below {HEAD_LEAST:.0%} head or vocabulary do not fit",
    )


def _rows(arm: str, responses: Sequence[Response]) -> Detection:
    """Mask token, row or mask wrong: the first draft is fine, and nothing behind it."""
    name, steps = "rows behind the first", [step for response in responses for step in response.steps]
    shares = [share for share in conditional(steps) if share is not None]
    if len(steps) < ENOUGH or len(shares) < 2:
        return _cannot(arm, name, len(steps))
    rest = max(shares[1:])
    return Detection(
        arm=arm,
        detector=name,
        found=shares[0] >= FIRST_FINE and rest < REST_ZERO,
        detail=f"{shares[0]:.1%} of first drafts accepted, behind an accepted one at most {rest:.1%}; "
        "next to nothing there means a wrong mask token, row or mask",
    )


def _context(arm: str, responses: Sequence[Response]) -> Detection:
    """Wrong window or rotation: acceptance falls as the context grows."""
    name = "acceptance over the context"
    accepted: dict[int, list[int]] = {}
    for response in responses:
        length = response.prompt_tokens + response.prefill_tokens
        for step in response.steps:
            accepted.setdefault(max(low for low in CONTEXTS if low <= length), []).append(
                step.num_accepted_tokens
            )
            length += step.num_emitted_tokens
    means = {low: sum(n) / len(n) for low, n in sorted(accepted.items()) if len(n) >= ENOUGH}
    if len(means) < 2:
        return Detection(
            arm=arm, detector=name, found=None, detail=f"needs {ENOUGH} verify steps at two context lengths"
        )
    *earlier, last = means.values()
    told = ", ".join(f"{mean:.2f} from {low}" for low, mean in means.items())
    return Detection(
        arm=arm,
        detector=name,
        found=last < FALLEN * max(earlier),
        detail=f"accepted drafts a step by tokens of context: {told}; a fall below {FALLEN:.0%} means a "
        "wrong window or rotation",
    )


def _cannot(arm: str, name: str, steps: int) -> Detection:
    detail = f"{steps} verify steps without repetitions, needs {ENOUGH} of several drafts"
    return Detection(arm=arm, detector=name, found=None, detail=detail)
