"""Acceptance from the counts of every verify step, after the cut at a stop or at max_tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.errors import UndefinedMetric
from harness.records import DecodeStep, Response
from harness.results import Acceptance


def acceptance(responses: Sequence[Response]) -> Acceptance:
    """Acceptance of one arm's responses; failed ones are skipped.

    `length` weighs steps alike (the committed tokens a verify step buys), `length_request_mean`
    weighs responses alike; both are reported since tools differ on which one they print. A step
    cut by a stop counts with what it emitted, and its drafts beyond the cut count as drafted.

    Raises:
        UndefinedMetric: no response has a verify step.
    """
    by_response = [r.steps for r in responses if r.status == "ok" and r.steps]
    steps = [step for own in by_response for step in own]
    if not steps:
        raise UndefinedMetric(
            "acceptance length has no value: no response has a verify step; raise max_tokens above 1"
        )
    drafted = np.array([step.num_draft_tokens for step in steps])
    accepted = np.array([step.num_accepted_tokens for step in steps])
    longest = int(drafted.max())
    offers = [int(np.sum(drafted >= place)) for place in range(1, longest + 1)]
    kept = [int(np.sum(accepted >= place)) for place in range(1, longest + 1)]
    return Acceptance(
        length=_emitted(steps) / len(steps),
        length_request_mean=float(np.mean([_emitted(own) / len(own) for own in by_response])),
        verify_steps=len(steps),
        num_draft_tokens=int(drafted.sum()),
        num_accepted_tokens=int(accepted.sum()),
        acceptance_rate=float(accepted.sum() / drafted.sum()) if drafted.sum() else None,
        histogram=tuple(int(n) for n in np.bincount(accepted, minlength=longest + 1)),
        per_position=tuple(k / n for k, n in zip(kept, offers, strict=True)),
        survival=tuple(k / len(steps) for k in kept),
    )


def _emitted(steps: Sequence[DecodeStep]) -> int:
    return sum(step.num_emitted_tokens for step in steps)
