"""What draft trees of some sizes have accepted, and which size pays. Pure."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from harness.codec import Record
from harness.oracle.stored import StoredRun

NODES = "tree"  # parameter of an arm: nodes of its draft trees


class TreePoint(Record, frozen=True):
    """Trees of one size, measured."""

    nodes: int
    acceptance_length: float
    token_s: float  # median seconds of a step over the tokens that a step emits


class Trees(NamedTuple):
    """The two best sizes."""

    longest: TreePoint  # accepts most
    quickest: TreePoint  # emits most tokens a second here


def tree_points(run: StoredRun) -> tuple[TreePoint, ...]:
    """A point for every arm with trees, the smallest first."""
    found = []
    for arm in run.job.plan.arms:
        nodes = arm.params.get(NODES)
        steps = [
            (step, after - before)
            for one in run.responses
            if one.arm == arm.name and one.status == "ok"
            for step, before, after in zip(
                one.steps,
                (one.first_token_ns or 0, *(step.at_ns for step in one.steps)),
                (step.at_ns for step in one.steps),
                strict=False,
            )
        ]
        if not isinstance(nodes, int) or not steps:
            continue
        length = sum(step.num_emitted_tokens for step, _ in steps) / len(steps)
        took = statistics.median(took for _, took in steps) / 1e9
        found.append(TreePoint(nodes=nodes, acceptance_length=length, token_s=took / length))
    return tuple(sorted(found, key=lambda one: one.nodes))


def best_trees(points: tuple[TreePoint, ...]) -> Trees | None:
    """The size that accepts most, and the one that is quickest; None without a point."""
    if not points:
        return None
    return Trees(
        longest=max(points, key=lambda one: (one.acceptance_length, -one.nodes)),
        quickest=min(points, key=lambda one: (one.token_s, one.nodes)),
    )
