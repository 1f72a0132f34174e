"""Verify steps of a server's run, from what arrived when and from what the server counted. Pure.

A server streams the tokens of one engine step as one chunk, so a chunk stands for a step. It does not tell
how many drafts a step verified: that is the server's setting, or its counters' mean. What arrived together
but cannot be one step was several, in equal times.
"""

from __future__ import annotations

import math

import msgspec

from harness.oracle.stored import StoredRun
from harness.records import DecodeStep, Response
from harness.speculation import speculation_of, told_of


def with_steps(run: StoredRun) -> StoredRun:
    """The run with steps in place of chunks; what has steps stays as it is."""
    drafts = {arm.name: _drafts(run, arm.name) for arm in run.job.plan.arms}
    responses = tuple(
        _stepped(one, drafts[one.arm]) if one.chunks and not one.steps else one for one in run.responses
    )
    return run._replace(responses=responses)


def from_chunks(run: StoredRun, arm: str) -> bool:
    """Whether an arm's steps are only known by what arrived."""
    return any(one.arm == arm and one.chunks for one in run.responses)


def disagreement(run: StoredRun, arm: str) -> float | None:
    """Share by which accepted tokens of `with_steps` miss what the server counted; None where it does not.

    A server's counters are those of its last launch, whose responses are compared. What was accepted behind
    the end of an output was counted there and never arrived, so a few per cent are no fault.
    """
    counted = (told_of(run.report, run.job.plan.arm(arm)).get("counters") or {}).get("num_accepted_tokens")
    if not counted:
        return None
    last = run.job.plan.measure.launches - 1
    mine = [one for one in run.responses if one.arm == arm and one.launch == last]
    accepted = sum(step.num_accepted_tokens for one in mine for step in one.steps)
    return abs(accepted - int(counted)) / int(counted)


def _drafts(run: StoredRun, name: str) -> int:
    """Draft tokens of a step: by the server's setting, by its counters, else the most that were accepted."""
    arm = run.job.plan.arm(name)
    told = told_of(run.report, arm)
    known = speculation_of(arm, told).get("num_speculative_tokens")
    if known is not None:
        return int(known)
    counters = told.get("counters") or {}
    if counters.get("num_drafts"):
        return math.ceil(int(counters.get("num_draft_tokens") or 0) / int(counters["num_drafts"]))
    if arm.kind == "ar":
        return 0
    sizes = [chunk.num_tokens for one in run.responses if one.arm == name for chunk in one.chunks[1:]]
    return max(sizes, default=1) - 1


def _stepped(response: Response, drafts: int) -> Response:
    steps: list[DecodeStep] = []
    before = response.chunks[0].at_ns
    for chunk in response.chunks[1:]:
        parts = max(1, math.ceil(chunk.num_tokens / (drafts + 1)))
        left, start = chunk.num_tokens, before
        for part in range(1, parts + 1):
            emitted = min(left, drafts + 1)
            left -= emitted
            at = start + (chunk.at_ns - start) * part // parts
            steps.append(
                DecodeStep(
                    num_draft_tokens=drafts,
                    num_accepted_tokens=max(0, emitted - 1),
                    num_emitted_tokens=emitted,
                    at_ns=at,
                )
            )
        before = chunk.at_ns
    return msgspec.structs.replace(
        response, chunks=(), steps=tuple(steps), prefill_tokens=response.chunks[0].num_tokens
    )
