"""Records what a drafter thinks of what the target says: the traces that calibrate its trees.

At every step of ordinary decoding with the drafter's own chains the drafter is asked, level by level, for its
candidates behind the target's own tokens; their probabilities and the rank of the next one are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from reference_mechanisms.drafters.calibration import Recorded
from reference_mechanisms.drafters.protocol import Proposal, Wanted
from reference_mechanisms.drafters.trained import TrainedDrafter
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.lanes import Lanes
from reference_mechanisms.engine.target import Target
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.verification.calibrating import Judged


class TracingDrafter:
    """A drafter with weights that keeps its traces; `drafters.protocol.ContextDrafter`."""

    def __init__(self, inner: TrainedDrafter, recorded: Recorded, depths: int, candidates: int) -> None:
        """Draft as `inner` does.

        Args:
            inner: drafts chains.
            recorded: the target's own continuations, by prompt.
            depths: positions of a trace, at most.
            candidates: of a position, that are looked at.
        """
        self._inner, self._recorded, self._depths, self._candidates = inner, recorded, depths, candidates
        self.taps = inner.taps
        self.traces: list[list[Judged]] = []  # as in `verification.calibrating.calibrate`
        self._texts: dict[int, Sequence[int]] = {}

    def begin(self, slot: int, request: Request) -> None:
        """As in `protocol.Drafter`."""
        self._texts[slot] = self._recorded[request.prompt]
        self._inner.begin(slot, request)

    def extend(self, slot: int, taps: Tensor) -> None:
        """As in `protocol.ContextDrafter`."""
        self._inner.extend(slot, taps)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """As in `protocol.Drafter`."""
        for one in wanted:
            truth = self._texts[one.slot][len(one.token_ids) :][: min(self._depths, one.limit)]
            if truth:
                self.traces.append(self._inner.judged(one, truth, self._candidates))
        return self._inner.propose(wanted)


def traced(
    target: Target,
    drafter: TrainedDrafter,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    depths: int,
    candidates: int,
    lanes: Lanes | None = None,
) -> list[list[Judged]]:
    """Traces of single greedy requests.

    Args:
        target: the model.
        drafter: of chains, for single requests.
        prompts: token ids.
        tokens: of each output.
        depths: positions of a trace, at most: the drafter's own drafts.
        candidates: of a position, that are looked at.
        lanes: the target's steps of fixed shape; None: in as many rows as are needed.
    """
    decoder = Decoder(target, (), lambda _ids: "", max(map(len, prompts)) + tokens, lanes=lanes)
    requests = [
        Request(name=f"prompt {number}", prompt=tuple(prompt), sampling=Sampling(max_tokens=tokens))
        for number, prompt in enumerate(prompts)
    ]
    recorded = {one.prompt: decoder.continuation([one])[0] for one in requests}
    tracing = TracingDrafter(drafter, recorded, depths, candidates)
    for one in requests:
        for _ in decoder.stream([one], tracing):
            pass
    return tracing.traces
