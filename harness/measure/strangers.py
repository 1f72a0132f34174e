"""Prompts that a server cannot have met: is it as quick with them as with those of the run?

A server, or something in front of it, may answer known prompts from a cache, filled in the run or
long before it. The ids of a prompt, rotated, are as long and cost as much to prefill, but nobody has
sent them. They are sent after the last block of a launch, in the batch shape of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from harness.measure.launch import requests_for
from harness.measure.stopwatch import Place, run_batch
from harness.plan import Job
from harness.protocols import Clock, ServerSession, Session
from harness.records import DecodeRequest, PromptLine

ROUNDS = 2
ALONE = 8  # strangers of a run that sends one request at a time


def meet_strangers(
    job: Job,
    sessions: Mapping[str, Session | ServerSession],
    prompts: Sequence[PromptLine],
    launch: int,
    clock: Clock,
) -> dict[str, dict[str, int]]:
    """Time to the first token of strangers, by arm and by the prompt each was made from.

    Each prompt makes a stranger in every round, and the quickest is told: one late answer on a busy
    machine is no sign of a cache.

    Args:
        job: plan and deployment.
        sessions: open session of every arm; those that are no server are passed over.
        prompts: of the run.
        launch: index of the launch; strangers of two launches differ.
        clock: the measurer's.
    """
    batch = job.plan.measure.batch
    requests = requests_for(job, prompts)[: None if batch > 1 else ALONE]
    met: dict[str, dict[str, int]] = {}
    for arm in job.plan.arms:
        session = sessions[arm.name]
        if not isinstance(session, ServerSession):
            continue
        quickest = met.setdefault(arm.name, {})
        place = Place(arm=arm.name, launch=launch, block=0, order=0)
        for turn in range(ROUNDS):
            for start in range(0, len(requests), batch):
                chosen = [_stranger(r, launch * ROUNDS + turn + 1) for r in requests[start : start + batch]]
                for response in run_batch(session, chosen, [r.request_id for r in chosen], place, clock):
                    if response.first_token_ns is not None:
                        before = quickest.get(response.prompt_id, response.first_token_ns)
                        quickest[response.prompt_id] = min(before, response.first_token_ns)
    return met


def _stranger(request: DecodeRequest, by: int) -> DecodeRequest:
    """The request with its prompt rotated by so many tokens."""
    ids = request.prompt_token_ids
    cut = by % len(ids)
    return msgspec.structs.replace(request, prompt_token_ids=(*ids[cut:], *ids[:cut]))
