"""Acceptance from the counts of every verify step, after the cut at a stop or at max_tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.errors import UndefinedMetric
from harness.records import DecodeStep, Response
from harness.results import Acceptance, SetAcceptance
from harness.stats.degenerate import degenerate


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


def acceptance_by_set(responses: Sequence[Response], sets: Mapping[str, str]) -> tuple[SetAcceptance, ...]:
    """Acceptance of one arm on each evaluation set, in the order in which the sets come.

    Args:
        responses: of the arm; failed ones, and those without a verify step, are skipped.
        sets: name of the set of each prompt.
    """
    by_set: dict[str, list[Response]] = {}
    for response in responses:
        if response.status == "ok" and response.steps:
            by_set.setdefault(sets[response.prompt_id], []).append(response)
    return tuple(_on_set(name, own) for name, own in by_set.items())


def conditional(steps: Sequence[DecodeStep]) -> tuple[float | None, ...]:
    """For each place of a draft, how often it was accepted where all before it were."""
    longest = max((step.num_draft_tokens for step in steps), default=0)
    shares: list[float | None] = []
    for place in range(1, longest + 1):
        reached = [s for s in steps if s.num_draft_tokens >= place and s.num_accepted_tokens >= place - 1]
        kept = sum(step.num_accepted_tokens >= place for step in reached)
        shares.append(kept / len(reached) if reached else None)
    return tuple(shares)


def _on_set(name: str, responses: Sequence[Response]) -> SetAcceptance:
    good = [response for response in responses if not degenerate(response.token_ids)]
    found = acceptance(good) if good else None
    return SetAcceptance(
        set_name=name,
        responses=len(responses),
        degenerate=len(responses) - len(good),
        length=None if found is None else found.length,
        length_request_mean=None if found is None else found.length_request_mean,
        verify_steps=0 if found is None else found.verify_steps,
        survival=() if found is None else found.survival,
        conditional=conditional([step for response in good for step in response.steps]),
        length_with_degenerate=acceptance(responses).length,
    )


def _emitted(steps: Sequence[DecodeStep]) -> int:
    return sum(step.num_emitted_tokens for step in steps)
