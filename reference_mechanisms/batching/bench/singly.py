"""One request at a time in recorded steps of one: how hybrid targets are timed alone.

The steps are those that an arm's single requests take (`engine.lanes`); the drafter drafts whole in each of
them, and then the trace says what is accepted. So all variants of batching are the same here.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

from reference_mechanisms.batching.bench.replaying import Known
from reference_mechanisms.batching.one_by_one import OneByOne
from reference_mechanisms.batching.traces.format import steps_of
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import StaticDrafter
from reference_mechanisms.drafters.replaying import ReplayedDrafter
from reference_mechanisms.engine.bench.single import no_text, single_engine
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.target import Target
from reference_mechanisms.request import Event, Request


class Singly:
    """A target and its drafter in steps of one request."""

    def __init__(self, target: Target, inner: StaticDrafter, positions: int, drafts: int) -> None:
        """Record the steps.

        Args:
            target: the model.
            inner: drafts in every step.
            positions: of the longest request, prompt and output.
            drafts: tokens of a draft.

        Raises:
            TargetError: steps of fixed shape cannot run the target, or do not fit the device.
        """
        lanes, self._decoder = single_engine(target, positions, drafts + 1, Graphs(target.device))
        self._drafts, self.about = drafts, lanes.about
        self._drafter = ReplayedDrafter(inner, target.config.vocab_size, positions + 1, target.device)
        lanes.driving(self._drafter.taps, self._drafter)
        # Without drafts one row is enough, where that rounds as many do.
        self._plain = Decoder(target, (), no_text, positions, lanes=lanes.narrowed(1))

    def autoregressive(self) -> OneByOne:
        """An engine without drafts."""
        return OneByOne(lambda request: _events(self._plain, request, NoDrafter()), _nothing)

    def replaying(self, known: Mapping[tuple[int, ...], Known]) -> OneByOne:
        """An engine whose drafts are accepted as traces say.

        Args:
            known: of every request that it will get, by prompt.
        """

        def stream(request: Request) -> Generator[Event, None, None]:
            found = known[request.prompt]
            self._drafter.record(
                (*request.prompt, *found.continuation), tuple(steps_of(found.trace, self._drafts))
            )
            yield from self._decoder.stream((request,), self._drafter)

        return OneByOne(stream, _nothing)


def _events(decoder: Decoder, request: Request, drafter: NoDrafter) -> Generator[Event, None, None]:
    yield from decoder.stream((request,), drafter)


def _nothing() -> None:
    """What an engine was made of lives on."""
