"""Audits that need the engine or server itself: cost of capturing, a delay that must be seen, caches.

They open what a plan names, measure a little, and give an `Audit`; nothing is written.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from harness.errors import InvalidRun, UsageError
from harness.load.client import Reply
from harness.load.generator import drive
from harness.load.wire import Capabilities, request_body
from harness.measure.launch import open_sessions, requests_for
from harness.measure.probes import FEWEST, capture_cost, delay_seen, no_faster, repeated
from harness.plan import Job
from harness.protocols import Clock, ServerSession
from harness.records import DecodeRequest, PromptLine, Sampling
from harness.results import Audit


def capture_overhead(job: Job, prompts: Sequence[PromptLine], clock: Clock) -> Audit:
    """What hashing logits inside the timed run costs, on the baseline; see `probes.capture_cost`.

    Raises:
        UsageError: the baseline is a server, which hands out no logits to hash.
        InvalidRun: a request failed.
    """
    arm = job.plan.baseline.name
    with open_sessions(job) as sessions:
        session = sessions[arm]
        if isinstance(session, ServerSession):
            raise UsageError(f"arm {arm}: a server; there are no logits to capture from here")
        return capture_cost(session, arm, requests_for(job, prompts), clock)


def delay_injection(
    job: Job, prompts: Sequence[PromptLine], arm: str, delay_ms: float, clock: Clock
) -> Audit:
    """X3: a delay in every verify step must be seen whole by the clock; see `probes.delay_seen`.

    Raises:
        UsageError: the arm is a server, whose steps cannot be delayed from here, or makes no step.
        InvalidRun: a request failed.
    """
    with open_sessions(job) as sessions:
        session = sessions[arm]
        if isinstance(session, ServerSession):
            raise UsageError(f"--arm {arm}: a server; its steps cannot be delayed from here")
        requests = requests_for(job, prompts)
        session.prepare(arm, requests)
        return delay_seen(session, arm, requests, delay_ms, clock)


def cache_audits(
    base: str,
    capabilities: Capabilities,
    prompts: Sequence[Sequence[int]],
    clock: Clock,
    *,
    max_tokens: int,
    seed: int = 0,
) -> tuple[Audit, ...]:
    """R2 on one server: the same prompts again, shuffled, and one prompt over and over, against strangers.

    No cache salt is sent, so that a prefix cache shows as well as a cache of answers. A repetition fails
    if it is more than 10 % faster in the median and a sign test over prompts rejects chance at 1 %.

    Args:
        base: address of the server.
        capabilities: of the server.
        prompts: token ids; none of them may have been sent to this server before.
        clock: of the measurer.
        max_tokens: output tokens a request.
        seed: of the shuffle and of the nonces.

    Raises:
        InvalidRun: a request failed.
        UsageError: fewer than eight prompts, with which no sign test can reject chance.
    """
    if len(prompts) < FEWEST:
        raise UsageError(f"--count must be at least 8, got {len(prompts)}: fewer prompts show nothing")
    rng = random.Random(seed)  # noqa: S311 - an order, no secret
    vocabulary = sorted({token for ids in prompts for token in ids})

    def nonce(ids: Sequence[int]) -> tuple[int, ...]:
        return (*rng.choices(vocabulary, k=8), *ids)

    def send(rows: Sequence[Sequence[int]]) -> list[float]:
        bodies = [_body(ids, capabilities, max_tokens) for ids in rows]
        return [_per_token(reply) for reply in drive(f"{base}/v1/completions", bodies, clock, concurrency=1)]

    send([nonce(ids) for ids in prompts[:2]])  # warms up
    strangers = send([nonce(ids) for ids in prompts])
    first = send(prompts)
    return (
        no_faster("first meeting is like a stranger's", first, strangers),
        *repeated(prompts, first, send, lambda: nonce(prompts[0]), rng),
    )


def _body(ids: Sequence[int], capabilities: Capabilities, max_tokens: int) -> dict[str, Any]:
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=capabilities.knows("ignore_eos"))
    request = DecodeRequest(request_id="cache", prompt_token_ids=tuple(ids), sampling=sampling)
    return request_body(request, capabilities, None)


def _per_token(reply: Reply) -> float:
    if reply.error is not None:
        raise InvalidRun(f"a request of the cache audit failed: {reply.error}")
    return reply.end_ns / max(1, reply.usage_tokens or len(reply.chunks))
