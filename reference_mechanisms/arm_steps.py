"""How the verify steps of a session's arms are run, and how they are told of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from reference_mechanisms.arms import ArmSettings, ParameterError
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.lanes import ROW_STEP, Lanes, Static
from reference_mechanisms.engine.probe import Probe, probe_lanes
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import TargetError
from reference_mechanisms.verification.budgeting import best_rows
from reference_mechanisms.verification.tree_figures import TreeFigures


def lanes_of(arms: Mapping[str, ArmSettings], target: Target, capacity: int) -> Lanes | None:
    """Steps of one shape for all arms, so that their logits can be bitwise equal; on CUDA only.

    Raises:
        ParameterError: an arm cannot run in them, or they do not fit the device.
    """
    if target.device.type != "cuda" or not any(arm.graphs for arm in arms.values()):
        return None
    for name, arm in arms.items():
        if arm.graphs and arm.two_level is not None and arm.two_level.trusts_level_one:
            raise ParameterError(
                f"arms[{name}].params: `recheck` = 'near-ties' does not run in steps of fixed shape; give "
                f"`graphs = false` to every arm, so that all round alike"
            )
    most = max(arm.rows for arm in arms.values() if arm.graphs)
    rows = -(-most // ROW_STEP) * ROW_STEP
    try:
        return Lanes(target, capacity, Static(rows, Graphs(target.device)))
    except TargetError as error:
        raise ParameterError(str(error)) from None


def budgeted(
    arms: Mapping[str, ArmSettings], figures: Mapping[str, TreeFigures], *, stepped: bool
) -> dict[str, ArmSettings]:
    """Settle measured budgets for steps of fixed shape, which cost the same however few nodes they hold.

    Args:
        arms: of the session.
        figures: of the arms whose trees go by measured figures.
        stepped: single requests run in steps of fixed shape, where an arm does not refuse them.

    Raises:
        ParameterError: the figures of an arm hold no step that its tree fits.
    """
    found = dict(arms)
    for name, arm in arms.items():
        if not (stepped and arm.graphs and arm.tree_measured) or arm.tree is None:
            continue
        try:
            found[name] = dataclasses.replace(arm, tree=_nodes(arm.tree, figures[name]), tree_measured=False)
        except ValueError as error:
            raise ParameterError(
                f"arms[{name}].params: `tree_figures`: {error}; measure again with this `tree`"
            ) from None
    return found


def _nodes(tree: int, figures: TreeFigures) -> int:
    """Of up to `tree`, as many as give the most tokens a second."""
    if figures.costs is None or figures.tokens is None:
        raise ValueError("no step of trees was priced")
    return min(tree, best_rows(figures.tokens, figures.costs, -(-(1 + tree) // ROW_STEP) * ROW_STEP) - 1)


def lanes_for(lanes: Lanes | None, arm: ArmSettings) -> Lanes | None:
    """The lanes of one arm: of no more rows than it needs, where that changes no bit; in its form.

    Raises:
        ParameterError: they have more rows than the form takes.
    """
    if lanes is None or not arm.graphs:
        return None
    found = lanes.narrowed(arm.rows)
    try:
        return found.dense() if arm.dense_trees else found
    except TargetError as error:
        raise ParameterError(f"`delta_form` = 'wy': {error}") from None


def probed(lanes: Lanes | None, arms: Mapping[str, ArmSettings]) -> Probe | None:
    """What the widest steps of these arms do to the logits of the narrowest."""
    if lanes is None:
        return None
    stepped = [arm for arm in arms.values() if arm.graphs]
    narrow = lanes.narrowed(min(arm.rows for arm in stepped))
    return probe_lanes(narrow, lanes, trees=any(arm.verifies_trees for arm in stepped))


def shapes_of(arms: Mapping[str, ArmSettings]) -> tuple[int, ...]:
    """Rows of the verify steps of these arms."""
    most = max(settings.rows for settings in arms.values())
    return tuple(range(1, most + 1)) if most <= 8 else (1, 2, 3, most // 2, most - 1, most)


def verification_of(arms: Mapping[str, ArmSettings]) -> str:
    """How drafts are verified, for the report."""
    found = "chain; greedy by argmax, temperature above 0 by exact rejection sampling"
    trees = ", ".join(
        f"{name} (up to {one.tree} nodes)" for name, one in arms.items() if one.tree is not None
    )
    if trees:
        found += f"; tree: {trees}, along the target's own choices, which are draws at temperature above 0"
    return found
