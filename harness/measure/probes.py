"""Probes of a session that has just been measured: cost of capturing, a delay that must be seen, repetition.

They measure a little and give an `Audit`. At the end of a run's last launch each is made once, on a few
short requests, and its verdict is careful: a busy machine alone fails none of them.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from harness.errors import HarnessError, InvalidRun, UsageError
from harness.measure.launch import requests_for
from harness.measure.stopwatch import Place, run_batch
from harness.plan import Job
from harness.protocols import Clock, ServerSession, Session
from harness.records import DecodeRequest, PromptLine, Response, StepEvent
from harness.results import Audit

CAPTURE_LIMIT = 0.05  # R1: the timed rate is within 5 % of the same run without capture
CACHE_LIMIT = 0.10  # R2: no repetition may be more than 10 % faster
LEVEL = 0.01
CLOCK_SLACK = 0.02  # of the delay: sleeping is never exact
FEWEST = 8  # prompts; with fewer no sign test rejects chance
PROBED_TOKENS = 8  # of a request at the end of a run
DELAYED, DELAY_MS = 3, 20.0
OWN_SHARE = 0.5  # of an arm's own step, which a delay has at least
P = TypeVar("P")  # a prompt as it is sent


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


def probe(
    job: Job,
    sessions: Mapping[str, Session | ServerSession],
    prompts: Sequence[PromptLine],
    launch: int,
    clock: Clock,
) -> dict[str, tuple[Audit, ...]]:
    """Every probe that the arms allow, by arm; one that cannot be made says why.

    Args:
        job: plan and deployment.
        sessions: open and prepared session of every arm.
        prompts: of the run.
        launch: index of the launch.
        clock: the measurer's.
    """
    asked = tuple(_short(request) for request in requests_for(job, prompts)[:FEWEST])
    plan = job.plan
    found: dict[str, tuple[Audit, ...]] = {}
    for arm in plan.arms:
        session, name = sessions[arm.name], arm.name
        if isinstance(session, ServerSession):
            if plan.label == "full" and len(asked) >= FEWEST:  # a smoke run has its strangers
                sent = partial(_repetition, session, name, asked, launch, clock)
                found[name] = _made("cache", name, sent)
        elif name == plan.baseline.name and plan.measure.capture_logits:
            found[name] = _made("capture", name, partial(capture_cost, session, name, asked, clock))
    drafting = [
        (arm.name, session)
        for arm in sorted(plan.arms, key=lambda arm: arm.kind != "stock")
        if arm.kind in ("stock", "candidate") and not isinstance(session := sessions[arm.name], ServerSession)
    ]
    if drafting:  # one is enough: the clock is the same for all
        few = asked[:DELAYED]
        name, drafter = drafting[0]
        made = _made("delay", name, partial(delay_seen, drafter, name, few, DELAY_MS, clock))
        found[name] = (*found.get(name, ()), *made)
    return found


def capture_cost(session: Session, arm: str, requests: Sequence[DecodeRequest], clock: Clock) -> Audit:
    """What hashing logits inside the timed run costs, in ABBA order.

    Fails above the limit; no verdict where a sign test over the prompts cannot tell it from chance.

    Raises:
        InvalidRun: a request failed.
    """
    times: dict[bool, list[int]] = {True: [], False: []}
    for turn, request in enumerate((requests[0], *requests)):  # the first warms up
        for capture in (True, False) if turn % 2 else (False, True):
            asked = msgspec.structs.replace(request, capture_logits=capture)
            found = decode_one(session, arm, asked, clock)
            if turn:
                times[capture].append(found.end_ns or 0)
    cost = sum(times[True]) / sum(times[False]) - 1.0
    slower = sum(a > b for a, b in zip(times[True], times[False], strict=True))
    shown = _sign(slower, len(requests)) < LEVEL
    return Audit(
        name=f"capturing costs nothing: {arm}",
        passed=True if cost <= CAPTURE_LIMIT else False if shown else None,
        detail=(
            f"time with captured logits {cost:+.1%}, slower on {slower} of {len(requests)} prompts; limit "
            f"{CAPTURE_LIMIT:.0%}"
        ),
    )


def delay_seen(
    session: Session, arm: str, requests: Sequence[DecodeRequest], delay_ms: float, clock: Clock
) -> Audit:
    """X3: a delay in every verify step must be seen whole by the clock.

    The delay is at least half of the arm's own step: steps of a busy machine differ by a tenth and more, and
    a short delay would drown. Fails where no prompt shows half of it; no verdict where some do and the median
    does not show it whole.

    Args:
        session: prepared.
        arm: its name.
        requests: short ones; the first warms up besides.
        delay_ms: the least delay.
        clock: the measurer's.

    Raises:
        UsageError: no verify step was made.
        InvalidRun: a request failed.
    """
    steps: dict[bool, list[float]] = {True: [], False: []}
    own_ms = _step_ms(decode_one(session, arm, requests[0], clock))
    delay_ms = max(delay_ms, OWN_SHARE * (own_ms or 0.0))
    delayed = _Delayed(session, delay_ms / 1e3)
    for turn, request in enumerate(requests):
        for late in (False, True) if turn % 2 else (True, False):
            step_ms = _step_ms(decode_one(delayed if late else session, arm, request, clock))
            if step_ms is not None:
                steps[late].append(step_ms)
    if not steps[True] or len(steps[True]) != len(steps[False]):
        raise UsageError(f"--arm {arm}: no verify step was made; raise `sampling.max_tokens`")
    rises = [a - b for a, b in zip(steps[True], steps[False], strict=True)]
    least = delay_ms * (1.0 - CLOCK_SLACK)
    return Audit(
        name=f"a delay is seen: {arm}",
        passed=True if statistics.median(rises) >= least else False if max(rises) < delay_ms / 2 else None,
        detail=(
            f"{delay_ms:.4g} ms put into every verify step; the mean step rose by "
            f"{statistics.median(rises):.2f} ms (median of {len(rises)} prompts)"
        ),
    )


def _step_ms(found: Response) -> float | None:
    """The mean verify step of a response; None without one."""
    if not found.steps:
        return None
    return (found.steps[-1].at_ns - (found.first_token_ns or 0)) / len(found.steps) / 1e6


def repetition(
    session: ServerSession, arm: str, requests: Sequence[DecodeRequest], launch: int, clock: Clock
) -> tuple[Audit, ...]:
    """R2 inside a run: prompts nobody has sent, then again in another order, and one of them over and over.

    Every request has the salt that those of the run have, so that only a cache of answers can show.

    Args:
        session: of the server.
        arm: its name.
        requests: at least eight, of the run.
        launch: index of the launch; prompts of two launches differ.
        clock: the measurer's.

    Raises:
        InvalidRun: a request failed.
    """
    rng = random.Random(launch)  # noqa: S311 - an order, no secret

    def send(rows: Sequence[DecodeRequest]) -> list[float]:
        found = [decode_one(session, arm, request, clock) for request in rows]
        return [(one.end_ns or 0) / max(1, len(one.token_ids)) for one in found]

    fresh = [_unmet(request, rng) for request in requests]
    first = send(fresh)
    return repeated(fresh, first, send, lambda: _unmet(fresh[0], rng), rng, of=f": {arm}")


def repeated(
    known: Sequence[P],
    first: Sequence[float],
    send: Callable[[Sequence[P]], Sequence[float]],
    stranger: Callable[[], P],
    rng: random.Random,
    of: str = "",
) -> tuple[Audit, Audit]:
    """Prompts again in another order, and the first of them over and over, against strangers.

    Args:
        known: prompts that were just sent.
        first: how long each took then.
        send: sends prompts one by one; the time of each.
        stranger: as long a prompt as the first, that nobody has sent.
        rng: of the order.
        of: end of the names.
    """
    order = list(range(len(known)))
    rng.shuffle(order)
    again = dict(zip(order, send([known[n] for n in order]), strict=True))
    one = send([known[0]] * len(known))
    strangers = send([stranger() for _ in known])
    return (
        no_faster(f"shuffled repetition is like the first{of}", [again[n] for n in range(len(known))], first),
        no_faster(f"one prompt over and over is like strangers{of}", one, strangers),
    )


def no_faster(name: str, seen: Sequence[float], against: Sequence[float]) -> Audit:
    """Whether times are at most 10 % shorter than others, pair by pair; fails where a sign test agrees."""
    ratios = [b / a for a, b in zip(seen, against, strict=True)]
    ratio = statistics.median(ratios)
    faster = sum(r > 1.0 for r in ratios)
    p_value = _sign(faster, len(ratios))
    return Audit(
        name=f"cache: {name}",
        passed=not (ratio > 1.0 + CACHE_LIMIT and p_value < LEVEL),
        detail=(
            f"{ratio:.2f} times as fast in the median, {faster} of {len(ratios)} prompts faster "
            f"(p {p_value:.2g}); limit {1.0 + CACHE_LIMIT:.2f}"
        ),
    )


def decode_one(session: Session | ServerSession, arm: str, request: DecodeRequest, clock: Clock) -> Response:
    """One request, unrecorded.

    Raises:
        InvalidRun: it failed.
    """
    place = Place(arm=arm, launch=0, block=0, order=0)
    (found,) = run_batch(session, [request], [request.request_id], place, clock)
    if found.status != "ok":
        raise InvalidRun(f"arm {arm}, {request.request_id}: {found.error}")
    return found


def _made(what: str, arm: str, make: Callable[[], Audit | tuple[Audit, ...]]) -> tuple[Audit, ...]:
    """A run that is measured is not lost to a probe."""
    try:
        made = make()
    except HarnessError as error:
        made = Audit(name=f"{what}: {arm}", passed=None, detail=f"could not be probed: {error}")
    return (made,) if isinstance(made, Audit) else made


def _repetition(
    session: ServerSession, arm: str, requests: Sequence[DecodeRequest], launch: int, clock: Clock
) -> tuple[Audit, ...]:
    """What shows here is no verdict yet: other load may have gone in between."""
    found = repetition(session, arm, requests, launch, clock)
    hint = "; no verdict, `audit cache --url` on the server alone gives one"
    return tuple(
        one if one.passed else Audit(name=one.name, passed=None, detail=one.detail + hint) for one in found
    )


def _short(request: DecodeRequest) -> DecodeRequest:
    few = min(request.sampling.max_tokens, PROBED_TOKENS)
    return msgspec.structs.replace(
        request,
        sampling=msgspec.structs.replace(
            request.sampling, max_tokens=few, min_tokens=min(request.sampling.min_tokens, few)
        ),
    )


def _unmet(request: DecodeRequest, rng: random.Random) -> DecodeRequest:
    """As long a prompt that nobody has sent: its own tokens, drawn anew."""
    ids = request.prompt_token_ids
    return msgspec.structs.replace(request, prompt_token_ids=tuple(rng.choices(ids, k=len(ids))))


def _sign(successes: int, trials: int) -> float:
    """Chance of so many heads or more; exact, and without scipy, which every launch would have to load."""
    return sum(math.comb(trials, heads) for heads in range(successes, trials + 1)) / (1 << trials)
