"""From an arm's parts to the batcher that decodes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from reference_mechanisms.arms import ArmSettings
from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.costs import StepCosts, read_costs
from reference_mechanisms.batching.rationing import Ration
from reference_mechanisms.batching.running import PackedRunner
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters.binding import Bound
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Event, Request


def ration_of(arm: ArmSettings, bound: Bound | None) -> Ration | None:
    """What shares that which the arm's drafter drafted; None: nothing that its drafter would tell."""
    return Ration() if arm.rationed(bound) else None


def open_batcher(
    decoder: Decoder,
    drafter: Drafter,
    ration: Ration | None,
    arm: ArmSettings,
    settings: BatchSettings,
    close: Callable[[], None] = lambda: None,
) -> Batcher:
    """A batcher with everything that is switched on.

    Args:
        decoder: its target, and the rules of a request's turn.
        drafter: for `settings.slots` requests.
        ration: that the drafter was made with.
        arm: what the drafter is.
        settings: of batching.
        close: lets go of what decoder and drafter came from, when the batcher is closed.

    Raises:
        FiguresError: the table of costs cannot be read.
        CostError: it holds no usable table.
    """
    most, turns = arm.plain_rows - 1, decoder.turns
    costs: StepCosts | None = None if settings.costs is None else read_costs(settings.costs)[1]
    runner = PackedRunner(decoder.target, settings.slots, turns.capacity + most + 1)
    drafts = Drafts(drafter, most, ration, arm.tree is not None)
    return Batcher(runner, turns, drafts, settings, costs, close)


def decoded(
    decoder: Decoder, drafter: Drafter, ration: Ration | None, arm: ArmSettings, requests: Sequence[Request]
) -> Iterator[Event]:
    """Events of a batch as the arm decodes it: as it came, or `batch_slots` at a time.

    Args:
        decoder: of the arm.
        drafter: of the batch.
        ration: that the drafter was made with.
        arm: its settings.
        requests: the batch; `slot` of an event is the place in it.

    Raises:
        RequestError: a request cannot be served.
    """
    if arm.batching is None:
        yield from decoder.stream(requests, drafter)
        return
    for request in requests:
        decoder.turns.check(request)
    engine = open_batcher(decoder, drafter, ration, arm, arm.batching)
    places = {engine.submit(request): place for place, request in enumerate(requests)}
    while engine.busy:
        for name, outcome in engine.step():
            if isinstance(outcome, RequestError):
                raise outcome
            yield outcome._replace(slot=places[name])
