"""Steps of the batch loop in shapes that are recorded once: the smallest bucket that holds a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from reference_mechanisms.batching.costs import StepCosts, bucket_shapes
from reference_mechanisms.batching.running import Ran
from reference_mechanisms.engine.graphs import Graphs, Program
from reference_mechanisms.engine.prompt_step import PIECE
from reference_mechanisms.engine.rows import Rows
from reference_mechanisms.engine.slot_prompt import SlotPrompt
from reference_mechanisms.engine.slot_rows import Slots
from reference_mechanisms.engine.slot_step import Shape, Sitting, SlotBuffers, SlotStep
from reference_mechanisms.engine.slot_tree import SlotTreeStep, TreeSlots, depth_of
from reference_mechanisms.engine.slots import open_slots, open_tree_slots
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import TargetError

Heard = Callable[[int, int], None]  # shapes recorded, and how many there are


class BucketRunner:
    """See `running.Runner`; the host says what is verified, as drafters of any kind have it."""

    def __init__(
        self,
        target: Target,
        slots: int,
        capacity: int,
        most: int,
        shapes: Sequence[Shape],
        graphs: Graphs,
        levels: int = 0,
    ) -> None:
        """Allocate the cache.

        Args:
            target: the model.
            slots: requests at a time.
            capacity: most positions of a request.
            most: rows of a request in a step.
            shapes: of steps; the largest holds every slot with its longest draft.
            graphs: record the steps.
            levels: of the deepest tree; 0: drafts are chains.

        Raises:
            TargetError: the target is not one for fixed shapes, or the cache does not fit the device.
        """
        self.target, self.most, self.shapes = target, most, by_size(shapes)
        self.slots, self.graphs = slots, graphs
        rows, positions = self.shapes[-1].rows, capacity + most
        sizes = {"rows": rows, "most": most}
        self._trees: TreeSlots | None = None
        self.model: Slots
        if levels:
            self._trees = open_tree_slots(target, slots, positions, **sizes, levels=levels, graphs=graphs)
            self.model = self._trees
        else:
            self.model = open_slots(target, slots, positions, **sizes, graphs=graphs)
        self.cache, self.device = self.model.cache, target.device
        how = "CUDA graphs" if graphs.records else "no graphs"
        self.about = (
            f"up to {slots} requests in {len(self.shapes)} shapes of up to {self.shapes[-1].rows} rows, "
            f"{how}, {self.model.kernels.name} kernels"
        )
        self._taps: tuple[int, ...] | None = None
        self._programs: dict[Shape, Program] = {}

    def record(self, taps: Sequence[int], heard: Heard | None = None) -> None:
        """Record every shape, for layers that are tapped; what was recorded for others is let go.

        Args:
            taps: layers.
            heard: told of progress.
        """
        if self._taps == tuple(taps):
            return
        self._taps = tuple(taps)
        self._buffers = SlotBuffers(self.model, most=self.most, rows=self.shapes[-1].rows, taps=taps)
        self._prompt = SlotPrompt(self.model, taps, self.graphs)
        self._programs = {}
        for done, shape in enumerate(reversed(self.shapes), 1):  # the largest first: it sizes the pool
            self._programs[shape] = self.graphs.program(self._step(shape))
            if heard is not None:
                heard(done, len(self.shapes))

    def _step(self, shape: Shape) -> Program:
        if self._trees is not None:
            return SlotTreeStep(self._buffers, self._trees, shape)
        return _without_result(SlotStep(self._buffers, shape, drafts=0))

    def bucket(self, requests: int, rows: int) -> Shape:
        """See `smallest`."""
        return smallest(self.shapes, requests, rows)

    def run(self, rows: Rows, taps: Sequence[int]) -> Ran:
        """See `Runner`.

        Raises:
            ValueError: rows are a tree, and steps verify chains; or it is deeper than they take.
        """
        return self.run_in(self.bucket(len(rows.segments), len(rows.token_ids)), rows, taps)

    def run_in(self, shape: Shape, rows: Rows, taps: Sequence[int]) -> Ran:
        """As `run`, in a shape of `shapes` that holds the rows."""
        parents = self._parents(rows)
        self.record(taps)
        self.model.settle()
        buffers, segments, count = self._buffers, rows.segments, len(rows.token_ids)
        first, states = 0, []
        for slot, start, length in segments:
            ids = rows.token_ids[first : first + length]
            states.append(buffers.state_of(ids, start, length - 1, 0))
            self.model.ran(slot, first)
            first += length
        buffers.load([one.slot for one in segments], states, parents)
        buffers.sit([Sitting(one.slot, one.rows - 1, hosted=True) for one in segments], shape.seats)
        self._programs[shape]()
        finite, tapped = buffers.finite[:count] > 0, buffers.tapped[:count].clone()
        return Ran(buffers.logits[:count], buffers.choices[:count], finite, tapped)

    def _parents(self, rows: Rows) -> list[Sequence[int]] | None:
        """Of the rows of each segment, where steps verify trees."""
        if self._trees is None:
            if rows.parents is not None:
                raise ValueError("these steps of fixed shape verify chains; make them for trees")
            return None
        found: list[Sequence[int]] = []
        first = 0
        for _, _, count in rows.segments:
            chain = range(-1, count - 1)
            found.append(chain if rows.parents is None else rows.parents[first : first + count])
            if depth_of(found[-1]) > self._trees.levels:
                raise ValueError(f"a tree of {depth_of(found[-1])} levels in steps of {self._trees.levels}")
            first += count
        return found

    def prefill(self, rows: Rows, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Runner`."""
        self.record(taps)
        self.model.settle()
        (slot, start, count), tapped, last = rows.segments[0], [], 0
        for first in range(0, count, PIECE):
            ids = rows.token_ids[first : first + PIECE]
            self._prompt(ids, slot, start + first)
            last = len(ids)
            tapped.append(self._prompt.tapped[:last].clone())
        return self.target.logits(self._prompt.hidden[last - 1 : last].clone()), torch.cat(tapped)


def smallest(shapes: Sequence[Shape], requests: int, rows: int) -> Shape:
    """The first shape that holds so much; give them by size.

    Raises:
        TargetError: none does.
    """
    found = next((one for one in shapes if one.seats >= requests and one.rows >= rows), None)
    if found is None:
        raise TargetError(
            f"no recorded shape holds {rows} rows of {requests} requests; give a larger `batch_slots`"
        )
    return found


def by_size(shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """Shapes by rows, then by seats."""
    return tuple(sorted(shapes, key=_size))


def shapes_for(slots: int, drafts: int, costs: StepCosts | None) -> list[Shape]:
    """Shapes to record: those of a table, or those worth having without one.

    Args:
        slots: requests at a time.
        drafts: of a request, at most.
        costs: measured; its shapes of more requests than there are slots are left out.
    """
    known = [Shape(*one) for one in bucket_shapes(slots, drafts)]
    if costs is None:
        return known
    largest = max(known, key=_size)
    told = {Shape(one.requests, one.rows) for one in costs.verify if one.requests <= slots}
    return [largest, *(one for one in told if one.rows < largest.rows)]


def _size(shape: Shape) -> tuple[int, int]:
    return shape.rows, shape.seats


def _without_result(step: SlotStep) -> Program:
    def run() -> None:
        step()

    return run
