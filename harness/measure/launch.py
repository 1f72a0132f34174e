"""One launch: open the backends, prepare and warm up every arm, run the schedule.

Runs inside a fresh process (`harness.measure.worker`); knows nothing of files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from harness.measure.schedule import Slot, schedule
from harness.measure.stopwatch import Place, run_batch
from harness.plan import ArmSpec, Job
from harness.protocols import Clock, ServerSession, Session, resolve
from harness.records import DecodeRequest, PromptLine, Response


@contextlib.contextmanager
def open_sessions(job: Job) -> Iterator[Mapping[str, Session | ServerSession]]:
    """Open each backend once with all of its arms; map arm name to session."""
    groups: dict[str, list[ArmSpec]] = {}
    for arm in job.plan.arms:
        groups.setdefault(arm.backend, []).append(arm)
    with contextlib.ExitStack() as stack:
        by_arm: dict[str, Session | ServerSession] = {}
        for backend, arms in groups.items():
            session: Session | ServerSession = resolve(backend, f"arms[{arms[0].name}].backend")(
                job.deployment, arms
            )
            stack.callback(session.close)
            by_arm |= {arm.name: session for arm in arms}
        yield by_arm


def facts(job: Job, sessions: Mapping[str, Session | ServerSession]) -> dict[str, Any]:
    """What each backend says of itself, by backend name."""
    arm_of = {arm.backend: arm.name for arm in job.plan.arms}  # asked once: a server answers over a network
    return {backend: sessions[name].describe() for backend, name in arm_of.items()}


def requests_for(job: Job, prompts: Sequence[PromptLine]) -> tuple[DecodeRequest, ...]:
    """The request of every prompt; the same for every arm."""
    return tuple(
        DecodeRequest(
            request_id=line.prompt.prompt_id,
            prompt_token_ids=line.token_ids,
            sampling=job.plan.sampling,
            capture_logits=job.plan.measure.capture_logits,
        )
        for line in prompts
    )


def warm_up(
    job: Job, sessions: Mapping[str, Session | ServerSession], requests: Sequence[DecodeRequest], clock: Clock
) -> None:
    """Prepare every arm for all prompts, then decode a few batches per arm, unrecorded.

    Warm batches have the batch shape of the run, so that every shape a measured step uses has run
    before the clock starts.
    """
    batch = job.plan.measure.batch
    for arm in job.plan.arms:
        if not isinstance(sessions[arm.name], ServerSession):
            sessions[arm.name].prepare(arm.name, requests)
    warm = requests[: job.plan.measure.warmup_prompts]
    for arm in job.plan.arms:
        for start in range(0, len(warm), batch):
            chosen = [_as_warm_up(sessions[arm.name], request) for request in warm[start : start + batch]]
            place = Place(arm=arm.name, launch=0, block=0, order=0)
            run_batch(sessions[arm.name], chosen, [r.request_id for r in chosen], place, clock)
    for arm in job.plan.arms:  # a server counts from here on
        if isinstance(sessions[arm.name], ServerSession):
            sessions[arm.name].prepare(arm.name, requests)


def _as_warm_up(session: Session | ServerSession, request: DecodeRequest) -> DecodeRequest:
    """The request, or for code that is not ours one of the same length.

    A server, or a session that calls itself `foreign`, may answer from a cache what it has met before:
    its first meeting with a prompt must be a measured one. The audits of servers look for that.
    """
    if not isinstance(session, ServerSession) and not getattr(session, "foreign", False):
        return request
    return msgspec.structs.replace(request, prompt_token_ids=request.prompt_token_ids[::-1])


def run_slots(
    job: Job,
    sessions: Mapping[str, Session | ServerSession],
    prompts: Sequence[PromptLine],
    launch: int,
    blocks_done: frozenset[int],
    clock: Clock,
    on_slot: Callable[[Slot], None],
) -> Iterator[tuple[int, list[Response]]]:
    """Run the launch's schedule; yield (block, responses) as each block completes.

    Args:
        job: plan and deployment.
        sessions: open session of every arm.
        prompts: the run's prompts, tokenised.
        launch: index of the launch; part of the schedule's seed.
        blocks_done: blocks already measured by an earlier process of this launch.
        clock: the measurer's clock.
        on_slot: told after every slot, between measurements.
    """
    requests = requests_for(job, prompts)
    arms = [arm.name for arm in job.plan.arms]
    slots = schedule(arms, len(prompts), job.plan.measure, launch)
    for block in range(job.plan.measure.blocks):
        if block in blocks_done:
            continue
        responses: list[Response] = []
        for slot in (s for s in slots if s.block == block):
            chosen = [requests[index] for index in slot.prompts]
            place = Place(arm=slot.arm, launch=launch, block=block, order=slot.order)
            ids = [prompts[index].prompt.prompt_id for index in slot.prompts]
            responses += run_batch(sessions[slot.arm], chosen, ids, place, clock)
            on_slot(slot)
        yield block, responses
