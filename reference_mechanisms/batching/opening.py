"""From an arm's parts to the batcher that decodes it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from reference_mechanisms.arms import ArmSettings, ParameterError
from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.bucket_running import BucketRunner, by_size, shapes_for
from reference_mechanisms.batching.costs import StepCosts, read_costs
from reference_mechanisms.batching.driven import DrivenBatcher
from reference_mechanisms.batching.protocol import BatchEngine
from reference_mechanisms.batching.rationing import Ration
from reference_mechanisms.batching.running import PackedRunner, Runner
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters.binding import Bound
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import ContextDrafter, Drafter
from reference_mechanisms.drafters.slot_drafting import (
    SlotDrafter,
    SlotPrograms,
    SlotSizes,
    records,
    slot_program,
)
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.slot_lane import LaneSizes, SlotLane
from reference_mechanisms.engine.slots import open_slots
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Event, Request


def ration_of(arm: ArmSettings, bound: Bound | None) -> Ration | None:
    """What shares that which the arm's drafter drafted; None: nothing that its drafter would tell."""
    return Ration() if arm.rationed(bound) else None


def hold_buckets(arms: Mapping[str, ArmSettings]) -> None:
    """Hold that steps of arms with `batch_buckets` can run recurrent layers as their arm wants them.

    Raises:
        ParameterError: naming the arm.
    """
    for name, arm in arms.items():
        if arm.dense_trees and arm.batching is not None and arm.batching.buckets:
            raise ParameterError(
                f"arms[{name}].params: `batch_buckets` runs recurrent layers row after row; leave it or "
                f"`delta_form` = 'wy' out"
            )


class Runners:
    """Recorded steps that batch after batch takes up again; one batch runs in each at a time."""

    def __init__(self) -> None:
        """Nothing is recorded."""
        self._made: dict[Hashable, BucketRunner] = {}
        self._programs: dict[Hashable, SlotPrograms] = {}
        self._lanes: dict[Hashable, SlotLane] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._made) + len(self._lanes)

    def of(
        self,
        target: Target,
        slots: int,
        capacity: int,
        most: int,
        costs: StepCosts | None,
        taps: Sequence[int],
        levels: int = 0,
    ) -> BucketRunner:
        """The runner of these sizes; recorded when it is first asked for.

        Args:
            target: the model.
            slots: requests at a time.
            capacity: most positions of a request.
            most: rows of a request in a step.
            costs: whose shapes are recorded; None: those worth having without.
            taps: layers that the drafter reads.
            levels: of the deepest tree; 0: drafts are chains.

        Raises:
            TargetError: steps of fixed shape cannot run the target, or do not fit the device.
        """
        shapes = shapes_for(slots, most - 1, costs)
        key = (id(target), slots, capacity, most, tuple(sorted(shapes)), tuple(taps), levels)
        if key not in self._made:
            made = BucketRunner(target, slots, capacity, most, shapes, Graphs(target.device), levels)
            made.record(taps)
            self._made[key] = made
        return self._made[key]

    def lane(
        self,
        target: Target,
        slots: int,
        capacity: int,
        most: int,
        costs: StepCosts | None,
        drafter: SlotDrafter | None,
    ) -> SlotLane:
        """The programs of a batch that drives itself; recorded when they are first asked for.

        Args:
            target: the model.
            slots: requests at a time.
            capacity: most positions of a request.
            most: rows of a request in a step.
            costs: as of `of`.
            drafter: of these runners; None: nothing is drafted.

        Raises:
            TargetError: as of `of`.
        """
        shapes = by_size(shapes_for(slots, most - 1, costs))
        program = None if drafter is None else drafter.program
        key = (id(target), slots, capacity, most, shapes, id(program))
        if key not in self._lanes:
            graphs, rows = Graphs(target.device), shapes[-1].rows
            self._lanes[key] = SlotLane(
                open_slots(target, slots, capacity + most, rows=rows, most=most, graphs=graphs),
                sizes=LaneSizes(shapes, most),
                taps=() if drafter is None else drafter.taps,
                program=program,
                graphs=graphs,
            )
        return self._lanes[key]

    def drafters(self, target: Target, slots: int, capacity: int) -> Callable[[Bound, Drafting], Drafter]:
        """Makes drafters with weights for a batch, their forwards recorded where they are of fixed shape.

        Args:
            target: that they draft for.
            slots: requests at a time.
            capacity: most positions of a request.
        """

        def make(bound: Bound, drafting: Drafting) -> Drafter:
            if not records(drafting):
                return bound.new_drafter(drafting)
            key = (id(bound.network), drafting.drafts, slots, capacity)
            if key not in self._programs:
                sizes = SlotSizes(slots, capacity, len(bound.taps) * target.config.hidden_size)
                program = slot_program(bound, drafting.drafts, slots, capacity)
                like = bound.network.fc.weight
                self._programs[key] = SlotPrograms(program, sizes, like, Graphs(target.device))
            return SlotDrafter(self._programs[key], bound.taps, drafting)

        return make


def open_batcher(
    decoder: Decoder,
    drafter: Drafter,
    ration: Ration | None,
    arm: ArmSettings,
    settings: BatchSettings,
    close: Callable[[], None] = lambda: None,
    runners: Runners | None = None,
) -> BatchEngine:
    """A batcher with everything that is switched on.

    In recorded steps the device drives, where nothing asks the host what to draft or to accept.

    Args:
        decoder: its target, and the rules of a request's turn.
        drafter: for `settings.slots` requests.
        ration: that the drafter was made with.
        arm: what the drafter is.
        settings: of batching.
        close: lets go of what decoder and drafter came from, when the batcher is closed.
        runners: recorded steps to take up again; the batcher before on the same ones is over then. None:
            record anew.

    Raises:
        FiguresError: the table of costs cannot be read.
        CostError: it holds no usable table.
        TargetError: steps of fixed shape cannot run the target, or do not fit the device.
    """
    most, turns, target = arm.plain_rows - 1, decoder.turns, decoder.target
    costs: StepCosts | None = None if settings.costs is None else read_costs(settings.costs)[1]
    recorded = Runners() if runners is None else runners
    sizes = (settings.slots, turns.capacity, most + 1)
    if settings.buckets and _drives(settings, drafter, decoder):
        own = drafter if isinstance(drafter, SlotDrafter) else None
        return DrivenBatcher(recorded.lane(target, *sizes, costs, own), turns, settings, costs, close)
    drafts = Drafts(drafter, most, ration, arm.tree is not None)
    runner: Runner
    if settings.buckets:
        taps = drafter.taps if isinstance(drafter, ContextDrafter) else ()
        runner = recorded.of(target, *sizes, costs, taps, 0 if arm.tree is None else arm.drafts)
    else:
        runner = PackedRunner(target, settings.slots, turns.capacity + most + 1)
    return Batcher(runner, turns, drafts, settings, costs, close)


def _drives(settings: BatchSettings, drafter: Drafter, decoder: Decoder) -> bool:
    """Whether the device can drive itself: its rules, its drafter, each request at its own pace."""
    if not settings.ragged or settings.cohorts or not decoder.turns.plain_greedy:
        return False
    return isinstance(drafter, NoDrafter) or (
        isinstance(drafter, SlotDrafter) and drafter.program is not None
    )


def decoded(
    decoder: Decoder,
    drafter: Drafter,
    ration: Ration | None,
    arm: ArmSettings,
    requests: Sequence[Request],
    runners: Runners | None = None,
) -> Iterator[Event]:
    """Events of a batch as the arm decodes it: as it came, or `batch_slots` at a time.

    Args:
        decoder: of the arm.
        drafter: of the batch.
        ration: that the drafter was made with.
        arm: its settings.
        requests: the batch; `slot` of an event is the place in it.
        runners: as of `open_batcher`.

    Raises:
        RequestError: a request cannot be served.
    """
    if arm.batching is None:
        yield from decoder.stream(requests, drafter)
        return
    for request in requests:
        decoder.turns.check(request)
    engine = open_batcher(decoder, drafter, ration, arm, arm.batching, runners=runners)
    places = {engine.submit(request): place for place, request in enumerate(requests)}
    while engine.busy:
        for name, outcome in engine.step():
            if isinstance(outcome, RequestError):
                raise outcome
            yield outcome._replace(slot=places[name])
