"""One request decoded with its times: when each step's tokens were in the host's hands."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.request import Request

Clock = Callable[[], int]  # nanoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A request that was decoded."""

    token_ids: tuple[int, ...]
    accepted: tuple[int, ...]  # draft tokens of each step
    began_ns: int  # before the prefill
    step_ns: tuple[int, ...]  # when each step's tokens were there; the prefill's first
    logits_sha256: str | None

    @property
    def step_ms(self) -> float:
        """Milliseconds of a step, from the end of the first to the end of the last."""
        return (self.step_ns[-1] - self.step_ns[1]) / (len(self.step_ns) - 2) / 1e6

    @property
    def tokens_per_second(self) -> float:
        """Of the whole request, prefill included."""
        return len(self.token_ids) / (self.step_ns[-1] - self.began_ns) * 1e9

    @property
    def acceptance_length(self) -> float:
        """Tokens of a step, the bonus token included."""
        return 1 + statistics.fmean(self.accepted)


def decode_timed(decoder: Decoder, drafter: Drafter, request: Request, clock: Clock) -> Timed:
    """Decode one request."""
    began = clock()
    tokens: list[int] = []
    accepted: list[int] = []
    times: list[int] = []
    digest = None
    for event in decoder.stream([request], drafter):
        times.append(clock())
        tokens.extend(event.token_ids)
        digest = event.logits_sha256
        if event.kind == "step":
            accepted.append(event.accepted)
    return Timed(
        token_ids=tuple(tokens),
        accepted=tuple(accepted),
        began_ns=began,
        step_ns=tuple(times),
        logits_sha256=digest,
    )


def middle(timed: Sequence[Timed], of: Callable[[Timed], float]) -> float:
    """The median of something over requests."""
    return statistics.median(of(one) for one in timed)


def tokens_of(timed: Iterable[Timed]) -> int:
    """Tokens of all requests."""
    return sum(len(one.token_ids) for one in timed)
