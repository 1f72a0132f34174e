"""What a step costs and gives, in the programs that the engine runs: on CUDA recorded, elsewhere as they are.

Outputs are decoded as the engine decodes them, which tells the tokens of a step. Then the lane that did it
runs its program again and again, one step behind the other as where the device never waits, under a clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.engine.decode import Decoder, driving_lane
from reference_mechanisms.engine.lanes import Lanes
from reference_mechanisms.engine.target import Target
from reference_mechanisms.request import Request, Sampling

STEPS = 8  # that run between two looks at the clock
REPEATS = 9  # looks, of which the median counts
ANCHOR = 0  # any token: what a step costs does not hang on it


class Price(NamedTuple):
    """Of the steps of one drafter in one shape."""

    step: float  # seconds of a whole step: verify, take in what was accepted, draft
    draft: float  # seconds of its draft alone; 0 without a drafter
    tokens: float  # of a step, mean; the first token of an output belongs to none


class Outputs(NamedTuple):
    """What is decoded for it."""

    prompts: Sequence[Sequence[int]]  # token ids
    tokens: int  # of each output, at least 2


def price(
    target: Target,
    lanes: Lanes,
    new_drafter: Callable[[], Drafter],
    outputs: Outputs,
    clock: Callable[[], float],
) -> Price:
    """Of a drafter that drives itself.

    Args:
        target: the model.
        lanes: of it, in the shape that is priced.
        new_drafter: for single requests.
        outputs: to decode.
        clock: seconds, once the device has nothing left to do.

    Raises:
        ValueError: the host has a part in the drafts, so that no program is a whole step.
    """
    longest = max(map(len, outputs.prompts))
    decoder = Decoder(target, (), lambda _ids: "", longest + outputs.tokens, lanes=lanes)
    emitted = [
        len(event.token_ids)
        for number, prompt in enumerate(outputs.prompts)
        for event in decoder.stream([_request(number, prompt, outputs.tokens)], new_drafter())
        if event.kind == "step"
    ]
    drafter = new_drafter()
    lane = driving_lane(lanes, getattr(drafter, "taps", ()), drafter)
    if lane is None:
        raise ValueError("the host has a part in these drafts; there is no program of a whole step to time")
    start = longest  # behind the longest prompt, where the steps of its output were
    steps, drafts = [], []
    for _ in range(REPEATS):
        steps.append(_seconds(lambda: lane.replay(ANCHOR, start, outputs.tokens, STEPS), clock))
        drafts.append(_seconds(lambda: lane.redraft(STEPS), clock))
    return Price(statistics.median(steps), statistics.median(drafts), statistics.fmean(emitted))


def _seconds(run: Callable[[], None], clock: Callable[[], float]) -> float:
    begin = clock()
    run()
    return (clock() - begin) / STEPS


def _request(number: int, prompt: Sequence[int], tokens: int) -> Request:
    return Request(name=f"prompt {number}", prompt=tuple(prompt), sampling=Sampling(max_tokens=tokens))
