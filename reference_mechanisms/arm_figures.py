"""Measures what an arm's figures are made of: what its trees are worth, agreement and price of a first level.

Of a first level prices are of forwards without CUDA graphs, for a single request, as two levels run them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from reference_mechanisms.arm_targets import Loaded, setup_of, tree_setup_of
from reference_mechanisms.arm_tree_figures import lanes_maker, tree_figures_of
from reference_mechanisms.arms import ArmSettings, ParameterError
from reference_mechanisms.drafters.binding import Bound
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.engine.pricing import Outputs
from reference_mechanisms.verification.tree_figures import write_tree_figures
from reference_mechanisms.verification.two_level.figures import write_figures
from reference_mechanisms.verification.two_level.gain import Measured, best_rounds
from reference_mechanisms.verification.two_level.level_one import level_one_of
from reference_mechanisms.verification.two_level.measuring import (
    Measuring,
    device_clock,
    measure,
)
from reference_mechanisms.verification.two_level.settings import MAX_ROUNDS

WIDTHS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 65)  # rows of the passes that are timed


class Sample(NamedTuple):
    """On what figures are measured."""

    prompts: Sequence[Sequence[int]]  # token ids
    tokens: int  # of each output
    clock: Callable[[], float]  # seconds


def write_arm_figures(
    arm: ArmSettings, loaded: Loaded, bound: Bound | None, drafter_sha256: str, sample: Sample, out: Path
) -> str:
    """Measure and write the file that an arm names as `gain_figures` or `tree_figures`.

    Args:
        arm: with a first level, or with a tree.
        loaded: the target.
        bound: the arm's drafter, if it has weights; the arm is fitted to it.
        drafter_sha256: of its weights.
        sample: on what.
        out: the file.

    Returns:
        What was found, for people.

    Raises:
        ParameterError: the arm has neither.
        TargetError: the target has no such level.
    """
    clock = device_clock(sample.clock, loaded.target.device)
    if arm.two_level is not None and arm.two_level.level_one is not None:
        level_one = level_one_of(arm.two_level.level_one, loaded.target, loaded.folder)
        rows, taps = arm.two_level.rows(arm.plain_rows), () if bound is None else bound.taps
        if max(taps, default=-1) >= level_one.config.layers:
            raise ParameterError(
                f"the drafter reads layer {max(taps)}, counted from 0, and level one ends behind "
                f"{level_one.config.layers}: it cannot draft for it; give `level_one_layers` more"
            )
        found = measure(
            Measuring(
                target=loaded.target,
                level_one=level_one,
                new_drafter=lambda: _drafter(arm, loaded, bound),
                prompts=sample.prompts,
                tokens=sample.tokens,
                drafts=arm.plain_rows - 1,
                widths=(*(width for width in WIDTHS if width < rows), rows),
                clock=clock,
            )
        )
        write_figures(out, setup_of(arm, loaded), found)
        return (
            f"beta {found.beta:.4f} over {len(found.runs)} tokens; level one's pass "
            f"{1000 * found.level_one_seconds:.2f} ms, the target's "
            f"{1000 * found.verify_seconds[found.rows]:.2f}; {_advice(found)}"
        )
    if arm.tree is None or bound is None:
        raise ParameterError(
            "there is nothing to measure: give the arm a `tree`, or `two_level` with a level one"
        )
    outputs = Outputs(sample.prompts, sample.tokens)
    new_lanes = lanes_maker(loaded, outputs, arm.drafts)
    trees = tree_figures_of(arm, loaded, bound, outputs, clock, new_lanes)
    write_tree_figures(out, tree_setup_of(loaded, drafter_sha256), trees.figures)
    return trees.about


def _advice(measured: Measured) -> str:
    choice = best_rounds(measured, MAX_ROUNDS)
    return f"at best {choice.gain:.2f} times the speed, so {choice.rounds or 'no'} rounds"


def _drafter(arm: ArmSettings, loaded: Loaded, bound: Bound | None) -> Drafter:
    if arm.records:
        raise ParameterError(f"`drafter` = {arm.drafter!r} is an instrument; measure with the drafter itself")
    return arm.new_drafter({}, loaded.target.config.vocab_size, bound)
