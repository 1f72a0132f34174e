"""The slots of a batch, of the kind that its target needs."""

from __future__ import annotations

from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.prompt_step import PIECE
from reference_mechanisms.engine.slot_hybrid import HybridSlots, HybridTreeSlots
from reference_mechanisms.engine.slot_rows import DenseSlots, Slots
from reference_mechanisms.engine.slot_tree import DenseTreeSlots, TreeSlots
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.llama import LlamaTarget

OTHERS = "steps of fixed shape know dense and hybrid targets only; leave out `batch_buckets`"


def open_slots(target: Target, slots: int, positions: int, *, rows: int, most: int, graphs: Graphs) -> Slots:
    """Slots for so many requests whose drafts are chains, and a scratch slot behind them.

    Args:
        target: the model.
        slots: requests at a time.
        positions: of each.
        rows: of the largest step.
        most: of a request in a step.
        graphs: record what is recorded here.

    Raises:
        TargetError: the target is not one for fixed shapes, or they do not fit the device.
    """
    if isinstance(target, LlamaTarget):
        return DenseSlots(target, slots, positions)
    if isinstance(target, HybridTarget):
        return HybridSlots(target, slots, positions, rows=max(rows, PIECE), most=most, graphs=graphs)
    raise TargetError(OTHERS)


def open_tree_slots(
    target: Target, slots: int, positions: int, *, rows: int, most: int, levels: int, graphs: Graphs
) -> TreeSlots:
    """The same for trees that the host grows; arguments and errors as of `open_slots`.

    Args:
        target: the model.
        slots: requests at a time.
        positions: of each.
        rows: of the largest step.
        most: of a request in a step.
        levels: of the deepest tree, at most.
        graphs: record what is recorded here.
    """
    if isinstance(target, LlamaTarget):
        return DenseTreeSlots(target, slots, positions, levels=levels, graphs=graphs)
    if isinstance(target, HybridTarget):
        rows = max(rows, PIECE)
        return HybridTreeSlots(target, slots, positions, rows=rows, most=most, levels=levels, graphs=graphs)
    raise TargetError(OTHERS)
