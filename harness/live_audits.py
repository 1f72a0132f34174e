"""Audits that need the engine or server itself: cost of capturing, a delay that must be seen, caches.

They open what a plan names, measure a little, and give an `Audit`; nothing is written.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from scipy import stats as distributions

from harness.errors import InvalidRun, UsageError
from harness.load.client import Reply
from harness.load.generator import drive
from harness.load.wire import Capabilities, request_body
from harness.measure.launch import open_sessions, requests_for
from harness.measure.stopwatch import Place, run_batch
from harness.plan import Job
from harness.protocols import Clock, ServerSession, Session
from harness.records import DecodeRequest, PromptLine, Response, Sampling, StepEvent
from harness.results import Audit

CAPTURE_LIMIT = 0.05  # R1: the timed rate is within 5 % of the same run without capture
CACHE_LIMIT = 0.10  # R2: no repetition may be more than 10 % faster
LEVEL = 0.01
CLOCK_SLACK = 0.02  # of the delay: sleeping is never exact


class _Delayed:
    """A session that sleeps before it hands over each verify step, as a slower drafter would."""

    def __init__(self, inner: Session, seconds: float) -> None:
        self._inner, self._seconds = inner, seconds

    def describe(self) -> dict[str, Any]:
        return self._inner.describe()

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        self._inner.prepare(arm, requests)

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        for event in self._inner.stream(arm, requests):
            if event.kind == "step":
                time.sleep(self._seconds)
            yield event

    def close(self) -> None:
        self._inner.close()


def capture_overhead(job: Job, prompts: Sequence[PromptLine], clock: Clock) -> Audit:
    """What hashing logits inside the timed run costs, on the baseline, in ABBA order.

    Raises:
        InvalidRun: a request failed.
    """
    arm = job.plan.baseline.name
    times = {True: 0, False: 0}
    with open_sessions(job) as sessions:
        session = sessions[arm]
        requests = requests_for(job, prompts)
        for turn, request in enumerate((requests[0], *requests)):  # the first warms up
            for capture in (True, False) if turn % 2 else (False, True):
                asked = msgspec.structs.replace(request, capture_logits=capture)
                found = _one(session, arm, asked, clock)
                times[capture] += _took(found) if turn else 0
    cost = times[True] / times[False] - 1.0
    return Audit(
        name=f"capturing costs nothing: {arm}",
        passed=cost <= CAPTURE_LIMIT,
        detail=f"time with captured logits {cost:+.1%}, {len(prompts)} prompts; limit {CAPTURE_LIMIT:.0%}",
    )


def delay_injection(
    job: Job, prompts: Sequence[PromptLine], arm: str, delay_ms: float, clock: Clock
) -> Audit:
    """X3: a delay in every verify step must be seen whole by the clock.

    Raises:
        UsageError: the arm is a server, whose steps cannot be delayed from here, or makes no step.
        InvalidRun: a request failed.
    """
    steps: dict[bool, list[float]] = {True: [], False: []}
    with open_sessions(job) as sessions:
        plain = sessions[arm]
        if isinstance(plain, ServerSession):
            raise UsageError(f"--arm {arm}: a server; its steps cannot be delayed from here")
        requests = requests_for(job, prompts)
        plain.prepare(arm, requests)
        for turn, request in enumerate((requests[0], *requests)):
            for delayed in (True, False) if turn % 2 else (False, True):
                session = _Delayed(plain, delay_ms / 1e3) if delayed else plain
                found = _one(session, arm, request, clock)
                if turn and found.steps:
                    ends = [0 if found.first_token_ns is None else found.first_token_ns]
                    ends += [step.at_ns for step in found.steps]
                    steps[delayed].append((ends[-1] - ends[0]) / len(found.steps) / 1e6)
    if not steps[True]:
        raise UsageError(f"--arm {arm}: no verify step was made; raise `sampling.max_tokens`")
    rise = statistics.median(a - b for a, b in zip(steps[True], steps[False], strict=True))
    return Audit(
        name=f"a delay is seen: {arm}",
        passed=rise >= delay_ms * (1.0 - CLOCK_SLACK),
        detail=f"{delay_ms:g} ms put into every verify step; the mean step rose by {rise:.2f} ms (median)",
    )


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
    if len(prompts) < 8:
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
    order = list(range(len(prompts)))
    rng.shuffle(order)
    again = dict(zip(order, send([prompts[n] for n in order]), strict=True))
    repeated = send([prompts[0]] * len(prompts))
    fresh = send([nonce(prompts[0]) for _ in prompts])
    return (
        _no_faster("first meeting is like a stranger's", first, strangers),
        _no_faster("shuffled repetition is like the first", [again[n] for n in range(len(prompts))], first),
        _no_faster("one prompt over and over is like strangers", repeated, fresh),
    )


def _no_faster(name: str, seen: Sequence[float], against: Sequence[float]) -> Audit:
    ratios = [b / a for a, b in zip(seen, against, strict=True)]
    ratio = statistics.median(ratios)
    faster = sum(r > 1.0 for r in ratios)
    p_value = float(distributions.binomtest(faster, len(ratios), 0.5, alternative="greater").pvalue)
    return Audit(
        name=f"cache: {name}",
        passed=not (ratio > 1.0 + CACHE_LIMIT and p_value < LEVEL),
        detail=(
            f"{ratio:.2f} times as fast in the median, {faster} of {len(ratios)} prompts faster "
            f"(p {p_value:.2g}); limit {1.0 + CACHE_LIMIT:.2f}"
        ),
    )


def _body(ids: Sequence[int], capabilities: Capabilities, max_tokens: int) -> dict[str, Any]:
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=capabilities.knows("ignore_eos"))
    request = DecodeRequest(request_id="cache", prompt_token_ids=tuple(ids), sampling=sampling)
    return request_body(request, capabilities, None)


def _per_token(reply: Reply) -> float:
    if reply.error is not None:
        raise InvalidRun(f"a request of the cache audit failed: {reply.error}")
    return reply.end_ns / max(1, reply.usage_tokens or len(reply.chunks))


def _one(session: Session | ServerSession, arm: str, request: DecodeRequest, clock: Clock) -> Response:
    place = Place(arm=arm, launch=0, block=0, order=0)
    (found,) = run_batch(session, [request], [request.request_id], place, clock)
    if found.status != "ok":
        raise InvalidRun(f"arm {arm}, {request.request_id}: {found.error}")
    return found


def _took(response: Response) -> int:
    return response.end_ns or 0
