"""From an arm's parts to the batcher that decodes it."""

from __future__ import annotations

from typing import NamedTuple

from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.costs import Setup, StepCosts, read_costs
from reference_mechanisms.batching.rationing import Ration
from reference_mechanisms.batching.running import PackedRunner
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.engine.target import Target
from reference_mechanisms.engine.turns import Turns


class Parts(NamedTuple):
    """Of an arm."""

    target: Target
    turns: Turns  # by the arm's rules
    drafter: Drafter  # for as many requests as decode at a time
    most: int  # draft tokens of a request, or nodes of its tree
    tree: bool
    ration: Ration | None = None  # that the drafter was made with


def open_batcher(parts: Parts, settings: BatchSettings, capacity: int, here: Setup | None = None) -> Batcher:
    """A batcher with everything that the arm switched on.

    Args:
        parts: of the arm.
        settings: of the arm.
        capacity: positions of a request, prompt and output.
        here: the setup of this run, which the table's must equal; None: any.

    Raises:
        FiguresError: the table of costs cannot be read, or was measured elsewhere.
        CostError: it holds no usable table.
    """
    costs: StepCosts | None = None
    if settings.costs is not None:
        costs = read_costs(settings.costs, here)[1]
    runner = PackedRunner(parts.target, settings.slots, capacity + parts.most + 1)
    drafts = Drafts(parts.drafter, parts.most, parts.ration, parts.tree)
    return Batcher(runner, parts.turns, drafts, settings, costs)
