"""Checks of arms that servers run: what a server says of itself against what came over the wire.

Pure. A server, or something in front of it, can count generously, answer from a cache, or switch
speculation off; tokens and times alone show it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.plan import ArmSpec, Job
from harness.records import Response
from harness.results import Audit

CACHED = 2.0  # first meetings may take so many times as long as later ones, relative to the baseline


def server_audits(
    job: Job, responses: Sequence[Response], facts: Sequence[Mapping[str, Any]]
) -> tuple[Audit, ...]:
    """Audits of every arm whose responses came in chunks; none for other arms.

    Args:
        job: plan and deployment.
        responses: all responses of the run.
        facts: for each launch, what each backend told of itself, with the counters of each arm's
            server over the launch.
    """
    by_arm = {
        arm.name: [r for r in responses if r.arm == arm.name and r.status == "ok"] for arm in job.plan.arms
    }
    baseline = job.plan.baseline
    audits: list[Audit] = []
    for arm in job.plan.arms:
        own = by_arm[arm.name]
        if not any(response.chunks for response in own):
            continue
        told = [launch.get(arm.backend, {}).get("arms", {}).get(arm.name, {}) for launch in facts]
        audits += [_usage(arm, own), _ids(arm, own), _prefix_cache(arm, told), _refusals(arm, own)]
        if arm.name != baseline.name:
            audits += [_speculation(arm, told), _first_meetings(arm, own, by_arm[baseline.name])]
    return tuple(audits)


def server_warnings(responses: Sequence[Response]) -> tuple[str, ...]:
    """What a reader should know before the verdicts."""
    text = sorted({r.arm for r in responses if r.retokenised})
    return tuple(
        f"arm {name}: the server gave no token ids, so its text was re-tokenised; where the tokenizer cuts "
        "the same text in another way, a violated verdict can come from that alone"
        for name in text
    )


def _usage(arm: ArmSpec, own: Sequence[Response]) -> Audit:
    """R3 over a server: the counts it bills are those of the ids it sent."""
    name = f"usage is what was sent: {arm.name}"
    told = [r for r in own if r.usage_tokens is not None]
    if not told:
        return Audit(name=name, passed=None, detail="the server tells no usage")
    sent, billed = sum(len(r.token_ids) for r in told), sum(r.usage_tokens or 0 for r in told)
    wrong = [r for r in told if r.usage_tokens != len(r.token_ids)]
    detail = f"{billed} tokens billed, {sent} received in {len(told)} responses"
    if not wrong:
        return Audit(name=name, passed=True, detail=detail)
    first = wrong[0]
    detail += (
        f"; {len(wrong)} responses differ, the first: {first.prompt_id}, {first.usage_tokens} billed, "
        f"{len(first.token_ids)} received"
    )
    if all(r.retokenised for r in wrong):
        return Audit(name=name, passed=None, detail=f"{detail}; the ids are re-tokenised and may differ")
    return Audit(name=name, passed=False, detail=detail)


def _ids(arm: ArmSpec, own: Sequence[Response]) -> Audit:
    text = sum(r.retokenised for r in own)
    return Audit(
        name=f"ids from the server: {arm.name}",
        passed=None if text else True,
        detail=f"{len(own) - text} of {len(own)} responses came with token ids; the others are re-tokenised",
    )


def _speculation(arm: ArmSpec, told: Sequence[Mapping[str, Any]]) -> Audit:
    """X4 over a server: its own counters, over the measured requests."""
    name = f"speculation on: {arm.name}"
    drafted = _counted(told, "num_draft_tokens")
    if drafted is None:
        return Audit(name=name, passed=None, detail="the server exports no speculation counters")
    accepted, drafts = _counted(told, "num_accepted_tokens") or 0, _counted(told, "num_drafts") or 0
    length = f", acceptance length {1.0 + accepted / drafts:.3f} by its own counters" if drafts else ""
    return Audit(
        name=name,
        passed=drafted > 0,
        detail=f"{drafted} tokens drafted in {drafts} verify steps, {accepted} accepted{length}",
    )


def _prefix_cache(arm: ArmSpec, told: Sequence[Mapping[str, Any]]) -> Audit:
    name = f"no answer from a prefix cache: {arm.name}"
    hits = _counted(told, "prefix_cache_hits")
    if hits is None:
        return Audit(name=name, passed=None, detail="the server exports no prefix-cache counters")
    asked = _counted(told, "prefix_cache_queries")
    return Audit(
        name=name,
        passed=True if hits == 0 else None,
        detail=f"{hits} of {asked if asked is not None else 'unknown'} prompt tokens came from the cache",
    )


def _refusals(arm: ArmSpec, own: Sequence[Response]) -> Audit:
    refused = sum(r.refusals for r in own)
    return Audit(
        name=f"accepted at once: {arm.name}",
        passed=True if not refused else None,
        detail=f"{refused} times a request was answered 429 or 503 first; the waiting counts in its time",
    )


def _first_meetings(arm: ArmSpec, own: Sequence[Response], baseline: Sequence[Response]) -> Audit:
    """A prompt answered from a cache is slow once and fast ever after; an engine is not."""
    name = f"no answer from a response cache: {arm.name}"
    ours, theirs = _fade(own), _fade(baseline)
    if ours is None or theirs is None:
        return Audit(
            name=name, passed=None, detail="every prompt was met once only; measure 2 blocks or more"
        )
    return Audit(
        name=name,
        passed=ours <= CACHED * max(1.0, theirs),
        detail=(
            f"first meetings took {ours:.2f} times as long as later ones (median over prompts), "
            f"{theirs:.2f} times in the baseline; the limit is {CACHED:g} times the baseline's"
        ),
    )


def _fade(responses: Iterable[Response]) -> float | None:
    """Median over prompts of the time of the first meeting over the median time of the later ones."""
    met: dict[str, list[int]] = {}
    for response in sorted(responses, key=lambda r: (r.launch, r.order)):
        if response.end_ns is not None:
            met.setdefault(response.prompt_id, []).append(response.end_ns)
    ratios = [times[0] / statistics.median(times[1:]) for times in met.values() if len(times) > 1]
    return statistics.median(ratios) if ratios else None


def _counted(told: Sequence[Mapping[str, Any]], counter: str) -> int | None:
    """Sum of a counter over launches; None when a launch lacks it."""
    values = [launch.get("counters", {}).get(counter) for launch in told]
    known = [int(value) for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
