"""What the gain model needs, measured: agreement in one teacher-forced run, prices by a clock.

The target has written texts. Level one reads each of them once, and agrees at a place if its best token is
the one that stands there: everything before the place is the target's, which is what "agreed so far" means.
A run that reaches the end of a text is cut there, so long holds are judged a little too low, never too high.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.protocol import ContextDrafter, Drafter, Proposal, Wanted
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.target import Target
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.verification.two_level.gain import Measured, agreed_runs

Clock = Callable[[], float]  # seconds

SPARE = 64  # positions for the nodes of a tree
FORCED_ROWS = 256  # of one forward
REPEATS = 5  # timed passes of one width, of which the median counts


class Text(NamedTuple):
    """A prompt and what the target says to it greedily."""

    token_ids: tuple[int, ...]
    prompt: int  # tokens


class Agreement(NamedTuple):
    """Of level one with texts of the target."""

    beta: float
    runs: tuple[int, ...]  # `gain.agreed_runs`
    places: int


def written(target: Target, prompts: Sequence[Sequence[int]], tokens: int) -> list[Text]:
    """Greedy texts of the target, as long as asked, whatever stop they pass.

    Args:
        target: level two.
        prompts: token ids.
        tokens: of each text.
    """
    decoder = Decoder(target, (), lambda _ids: "", max(map(len, prompts)) + tokens)
    requests = [_request(number, prompt, tokens) for number, prompt in enumerate(prompts)]
    texts = [decoder.continuation([request])[0] for request in requests]
    return [Text((*one.prompt, *text), len(one.prompt)) for one, text in zip(requests, texts, strict=True)]


@torch.inference_mode()
def agreement(level_one: Target, texts: Sequence[Text]) -> Agreement:
    """How often level one says what the target said.

    Raises:
        ValueError: the texts hold nothing that the target said.
    """
    agreed: list[list[bool]] = []
    for text in texts:
        ids = text.token_ids
        cache = level_one.new_cache(1, len(ids))
        best: list[int] = []
        for start in range(0, len(ids) - 1, FORCED_ROWS):
            piece = ids[start : min(start + FORCED_ROWS, len(ids) - 1)]
            rows = Rows(piece, range(start, start + len(piece)), (Segment(0, start, len(piece)),))
            hidden = level_one.forward(rows, cache).hidden
            # Rows before the last one of the prompt predict the prompt.
            said = max(0, text.prompt - 1 - start)
            if said < len(piece):
                best += level_one.logits(hidden[said:]).argmax(-1).tolist()
            cache.commit(0, len(piece))
        agreed.append([one == token for one, token in zip(best, ids[text.prompt :], strict=True)])
    places = sum(map(len, agreed))
    if not places:
        raise ValueError("`texts` holds no token that the target said; let it write some")
    return Agreement(sum(map(sum, agreed)) / places, agreed_runs(agreed), places)


class Timed:
    """A drafter with a clock around its drafts; `drafters.protocol.ContextDrafter`."""

    def __init__(self, inner: Drafter, clock: Clock) -> None:
        """Draft as `inner` does."""
        self._inner, self._clock = inner, clock
        self._reader = inner if isinstance(inner, ContextDrafter) else None
        self.taps = () if self._reader is None else self._reader.taps
        self.seconds: list[float] = []

    def begin(self, slot: int, request: Request) -> None:
        """As in `protocol.Drafter`."""
        self._inner.begin(slot, request)

    def extend(self, slot: int, taps: Tensor) -> None:
        """As in `protocol.ContextDrafter`."""
        if self._reader is not None:
            self._reader.extend(slot, taps)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """As in `protocol.Drafter`."""
        begin = self._clock()
        found = self._inner.propose(wanted)
        self.seconds.append(self._clock() - begin)
        return found


class Steps(NamedTuple):
    """Steps of a target with a drafter."""

    tokens: float  # mean of a step, the target's own among them
    draft_seconds: float  # median of a draft


def steps_of(
    target: Target, drafter: Drafter, prompts: Sequence[Sequence[int]], tokens: int, clock: Clock
) -> Steps:
    """Decode single requests; the first token of an output belongs to no step.

    Args:
        target: level two, or level one in its place.
        drafter: for either.
        prompts: token ids.
        tokens: of each output, at least 2.
        clock: seconds, once the device has nothing left to do.
    """
    decoder = Decoder(target, (), lambda _ids: "", max(map(len, prompts)) + tokens, spare=SPARE)
    timed = Timed(drafter, clock)
    emitted = [
        len(event.token_ids)
        for number, prompt in enumerate(prompts)
        for event in decoder.stream([_request(number, prompt, tokens)], timed)
        if event.kind == "step"
    ]
    return Steps(statistics.fmean(emitted), statistics.median(timed.seconds))


def pass_seconds(target: Target, context: Sequence[int], rows: int, clock: Clock) -> float:
    """Median seconds of one pass with its logits, behind a context.

    Args:
        target: either level.
        context: token ids that are cached before.
        rows: of the pass.
        clock: seconds, once the device has nothing left to do.
    """
    cache = target.new_cache(1, len(context) + rows)
    target.forward(Rows(context, range(len(context)), (Segment(0, 0, len(context)),)), cache)
    cache.commit(0, len(context))
    start = len(context)
    packed = Rows([context[0]] * rows, range(start, start + rows), (Segment(0, start, rows),))
    found = []
    for _ in range(REPEATS + 1):
        begin = clock()
        target.logits(target.forward(packed, cache).hidden)
        found.append(clock() - begin)
    return statistics.median(found[1:])


class Measuring(NamedTuple):
    """What is measured, and with what."""

    target: Target
    level_one: Target
    new_drafter: Callable[[], Drafter]
    prompts: Sequence[Sequence[int]]
    tokens: int  # of each text
    drafts: int  # of a step; its rows are one more
    widths: Sequence[int]  # rows of the target's passes that are timed
    clock: Clock


def measure(what: Measuring) -> Measured:
    """Every figure of the gain model."""
    texts = written(what.target, what.prompts, what.tokens)
    found = agreement(what.level_one, texts)
    context, rows = texts[0].token_ids, what.drafts + 1
    plain = steps_of(what.target, what.new_drafter(), what.prompts, what.tokens, what.clock)
    first = steps_of(what.level_one, what.new_drafter(), what.prompts, what.tokens, what.clock)
    return Measured(
        beta=found.beta,
        runs=found.runs,
        level_one_tokens=first.tokens,
        tokens=plain.tokens,
        draft_seconds=plain.draft_seconds,
        level_one_seconds=pass_seconds(what.level_one, context, rows, what.clock),
        verify_seconds={
            width: pass_seconds(what.target, context, width, what.clock) for width in {*what.widths, rows}
        },
        rows=rows,
    )


def device_clock(clock: Callable[[], float], device: torch.device) -> Clock:
    """A clock that waits for the device first."""

    def read() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return clock()

    return read


def _request(number: int, prompt: Sequence[int], tokens: int) -> Request:
    return Request(name=f"prompt {number}", prompt=tuple(prompt), sampling=Sampling(max_tokens=tokens))
