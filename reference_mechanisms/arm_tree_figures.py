"""Measures what a drafter's trees are worth, and what steps cost in the programs that the engine runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from reference_mechanisms.arm_targets import Loaded
from reference_mechanisms.arms import ArmSettings
from reference_mechanisms.drafters.binding import Bound
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.drafters.tracing import traced
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.lanes import ROW_STEP, Lanes, Static
from reference_mechanisms.engine.pricing import STEPS, Outputs, Price, price
from reference_mechanisms.verification.budgeting import Costs, best_rows
from reference_mechanisms.verification.calibrating import calibrate
from reference_mechanisms.verification.tree_figures import TreeFigures

CANDIDATES = 64  # of a position, whose worth is fitted: as many as a tree has nodes
EDGES = (8, 16, 24, 32, 48, 64)  # rows of the steps that are priced, each a shape of the engine's
NewLanes = Callable[[int], Lanes]


class Found(NamedTuple):
    """Figures, and a line about them for people."""

    figures: TreeFigures
    about: str


def lanes_maker(loaded: Loaded, outputs: Outputs, drafts: int) -> NewLanes:
    """New lanes of so many rows, as a session makes them: on CUDA recorded, for its whole context.

    Elsewhere no session has lanes, and they hold what is decoded here.

    Args:
        loaded: the target.
        outputs: what is decoded in them.
        drafts: most draft tokens of a step, one behind the other.
    """
    target = loaded.target
    needed = max(map(len, outputs.prompts)) + outputs.tokens + STEPS * (drafts + 1)
    capacity = loaded.context_length if target.device.type == "cuda" else needed
    return lambda rows: Lanes(target, max(capacity, needed), Static(rows, Graphs(target.device)))


def tree_figures_of(
    arm: ArmSettings,
    loaded: Loaded,
    bound: Bound,
    outputs: Outputs,
    clock: Callable[[], float],
    new_lanes: NewLanes,
) -> Found:
    """Fit what children are worth, then time trees of every size that fills a shape, up to the arm's.

    Args:
        arm: with a tree; fitted to `bound`.
        loaded: the target.
        bound: the arm's drafter.
        outputs: what is decoded.
        clock: seconds, once the device has nothing left to do.
        new_lanes: of so many rows; each is let go of before the next is made.
    """
    nodes, chains = arm.tree or 0, Drafting(drafts=arm.drafts)
    narrow = new_lanes(_rounded(1 + arm.drafts))
    traces = traced(
        loaded.target,
        bound.new_drafter(chains),
        outputs.prompts,
        tokens=outputs.tokens,
        depths=arm.drafts,
        candidates=CANDIDATES,
        lanes=narrow,
    )
    calibration = calibrate(traces, depths=arm.drafts)

    def priced(lanes: Lanes, new_drafter: Callable[[], Drafter], decoded: Outputs = outputs) -> Price:
        return price(loaded.target, lanes, new_drafter, decoded, clock)

    def priced_tree(rows: int) -> Price:
        drafting = dataclasses.replace(chains, tree=min(nodes, rows - 1), calibration=calibration)
        return priced(new_lanes(rows), lambda: bound.new_drafter(drafting))

    chain = priced(narrow, lambda: bound.new_drafter(chains))
    del narrow
    # Without drafts a step has one token: nothing need be decoded to tell.
    plain = priced(new_lanes(ROW_STEP), NoDrafter, Outputs(outputs.prompts, 2))
    trees = {rows: priced_tree(rows) for rows in EDGES if rows <= _rounded(1 + nodes)}
    draft = min(one.draft for one in trees.values())
    costs = Costs(draft, {1: plain.step} | {rows: one.step - draft for rows, one in trees.items()})
    tokens = {rows: one.tokens for rows, one in trees.items()}
    best = best_rows(tokens, costs, max(tokens))
    told = ", ".join(f"{rows} rows {_told(one)}" for rows, one in trees.items())
    return Found(
        TreeFigures(calibration=calibration, costs=costs, tokens=tokens),
        f"{len(traces)} drafts; off the best path a child is worth times {calibration.off_spine:.2f}; tokens "
        f"and time of a step: without drafts {_told(plain)}, chain {_told(chain)}, {told}; most tokens a "
        f"second with trees of {min(nodes, best - 1)} nodes",
    )


def _rounded(rows: int) -> int:
    """Rows of the step that holds so many."""
    return -(-rows // ROW_STEP) * ROW_STEP


def _told(one: Price) -> str:
    return f"{one.tokens:.2f} in {1000 * one.step:.3f} ms"
