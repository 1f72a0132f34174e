"""The slots of a batch, of the kind that its target needs."""

from __future__ import annotations

from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.prompt_step import PIECE
from reference_mechanisms.engine.slot_hybrid import HybridSlots
from reference_mechanisms.engine.slot_rows import DenseSlots, Slots
from reference_mechanisms.engine.slot_tree import DenseTreeSlots
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.llama import LlamaTarget


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
    raise TargetError("steps of fixed shape know dense and hybrid targets only; leave out `batch_buckets`")


def open_tree_slots(
    target: Target, slots: int, positions: int, *, levels: int, graphs: Graphs
) -> DenseTreeSlots:
    """The same for trees that the host grows.

    Args:
        target: the model.
        slots: requests at a time.
        positions: of each.
        levels: of the deepest tree, at most.
        graphs: record what is recorded here.

    Raises:
        TargetError: the target has recurrent layers, or they do not fit the device.
    """
    return DenseTreeSlots(tree_target(target), slots, positions, levels=levels, graphs=graphs)


def tree_target(target: Target) -> LlamaTarget:
    """The target, if steps of trees can run it.

    Raises:
        TargetError: it has recurrent layers.
    """
    if not isinstance(target, LlamaTarget):
        raise TargetError(
            "`batch_buckets` with a `tree` needs a target with attention layers only, and this one has "
            "recurrent layers; leave one of them out"
        )
    return target
