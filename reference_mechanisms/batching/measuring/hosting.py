"""What a step costs the host beside verifying and drafting: the batch loop itself, at full load."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.bucket_running import BucketRunner
from reference_mechanisms.batching.measuring.timing import Clock
from reference_mechanisms.batching.running import Ran
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters.protocol import Proposal, Wanted
from reference_mechanisms.engine.rows import Rows
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.target import Cache
from reference_mechanisms.engine.turns import Turns
from reference_mechanisms.request import Request, Sampling


class _Stopped:
    """A runner whose own time is taken out, and until the device is done."""

    def __init__(self, inner: BucketRunner, clock: Clock) -> None:
        self._inner, self._clock = inner, clock
        self.cache: Cache = inner.cache
        self.about, self.device = inner.about, inner.device
        self.spent = 0

    def run(self, rows: Rows, taps: Sequence[int]) -> Ran:
        began = self._clock()
        found = self._inner.run(rows, taps)
        wait_for(self.device)
        self.spent += self._clock() - began
        return found

    def prefill(self, rows: Rows, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self._inner.prefill(rows, taps)


class _Random:
    """Drafts that cost next to nothing, and are hardly ever right."""

    def __init__(self, drafts: int, vocab_size: int, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - no secret
        self._drafts, self._vocab_size = drafts, vocab_size

    def begin(self, slot: int, request: Request) -> None:
        """Nothing is kept."""

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        made = [min(self._drafts, one.limit) for one in wanted]
        return [Proposal(tuple(self._rng.randrange(self._vocab_size) for _ in range(n))) for n in made]


def host_times(runner: BucketRunner, capacity: int, drafts: int, steps: int, clock: Clock) -> list[int]:
    """Nanoseconds of the batch loop in each of so many steps, with every slot taken.

    Args:
        runner: of the steps; what its cache holds is lost.
        capacity: most positions of a request.
        drafts: tokens of each draft.
        steps: to take, fewer than a request of this capacity has.
        clock: of the times.
    """
    vocabulary, slots = runner.target.config.vocab_size, runner.slots
    stopped = _Stopped(runner, clock)
    turns = Turns((), _no_text, capacity, vocabulary, Rules())
    drafter = _Random(drafts, vocabulary, seed=0)
    engine = Batcher(stopped, turns, Drafts(drafter, drafts), BatchSettings(slots=slots))
    for number in range(slots):
        sampling = Sampling(max_tokens=capacity - 1, ignore_eos=True)
        engine.submit(Request(name=str(number), prompt=(number % vocabulary,), sampling=sampling))
    engine.step()
    found = []
    for _ in range(steps):
        stopped.spent, began = 0, clock()
        engine.step()
        found.append(clock() - began - stopped.spent)
    engine.close()
    return found


def _no_text(ids: Sequence[int]) -> str:
    del ids
    return ""


def wait_for(device: torch.device) -> None:
    """Until everything queued is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
