"""What each arm verifies with, where that is not the session's target as it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from reference_mechanisms.arms import ArmSettings, ParameterError
from reference_mechanisms.batching.costs import Ground, read_costs
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import MechanismError, TargetError
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.loading import is_dense, load_target
from reference_mechanisms.verification.tree_figures import TreeFigures, TreeSetup, read_tree_figures
from reference_mechanisms.verification.two_level.figures import Setup
from reference_mechanisms.verification.two_level.level_one import LevelOne, level_one_of
from reference_mechanisms.verification.two_level.policies import Levels, TwoLevel
from reference_mechanisms.weight12.product import streams
from reference_mechanisms.weight12.raw_matrices import load_streamed_hybrid, load_streamed_llama
from reference_mechanisms.weight12.target import load_packed_target


class Loaded(NamedTuple):
    """The session's target and what it was loaded from."""

    target: Target
    folder: Path | None  # of plain weights; None: they are packed
    sha256: str  # of the weights
    eos_ids: Sequence[int]
    context_length: int


def load_session_target(
    folder: Path, weights_format: str, dtype: torch.dtype, device: torch.device
) -> Target:
    """The target of a session, by the kernels of its weights and device.

    In bf16 targets go through the streaming kernels where those run: rows do not notice each other there,
    so steps of any shape round alike.

    Args:
        folder: of the model.
        weights_format: `deployment.weights_format`.
        dtype: to compute in.
        device: to compute on.

    Raises:
        TargetError: the folder is no complete checkpoint of a known architecture.
        WeightError: a packed folder was changed.
    """
    if weights_format == "weight12":
        return load_packed_target(folder, dtype, device)
    if dtype == torch.bfloat16 and streams(device):
        return (
            load_streamed_llama(folder, device) if is_dense(folder) else load_streamed_hybrid(folder, device)
        )
    return load_target(folder, dtype, device)


def dense_trees(arms: Mapping[str, ArmSettings], target: Target) -> dict[str, Target]:
    """The target of each arm that runs recurrent layers in the WY form.

    Raises:
        ParameterError: the target has none, or cannot run it here.
    """
    names = [name for name, one in arms.items() if one.dense_trees]
    if names and not isinstance(target, HybridTarget):
        raise ParameterError(
            f"arms[{names[0]}].params: `delta_form` = 'wy' is for recurrent layers, and the target has none"
        )
    try:
        return dict.fromkeys(names, target.dense_trees()) if isinstance(target, HybridTarget) else {}
    except TargetError as error:
        raise ParameterError(f"arms[{names[0]}].params: {error}") from None


def two_levels(
    arms: Mapping[str, ArmSettings],
    loaded: Loaded,
    dense: Mapping[str, Target],
    taps: Mapping[str, Sequence[int]],
) -> dict[str, TwoLevel]:
    """Of the arms that have two; arms with the same first level share it.

    Args:
        arms: of the session.
        loaded: its target.
        dense: targets of single arms in its place.
        taps: layers that an arm's drafter reads.

    Raises:
        ParameterError: naming the arm.
    """
    made: dict[LevelOne, Target] = {}

    def make(level: LevelOne) -> Target:
        if level not in made:
            made[level] = level_one_of(level, loaded.target, loaded.folder)
        return made[level]

    found = {}
    for name, one in arms.items():
        if one.two_level is None:
            continue
        levels = Levels(
            target=dense.get(name, loaded.target),
            make=make,
            eos_ids=loaded.eos_ids,
            capacity=loaded.context_length,
            nodes=one.tree or 0,
            rows=one.plain_rows,
        )
        try:
            found[name] = TwoLevel(one.two_level, levels, taps.get(name, ()), setup_of(one, loaded))
        except MechanismError as error:
            raise ParameterError(f"arms[{name}].params: {error}") from None
    return found


def tree_figures(
    arms: Mapping[str, ArmSettings], loaded: Loaded, sha256: Mapping[str, str]
) -> dict[str, TreeFigures]:
    """Of the arms whose trees go by measured figures.

    Args:
        arms: of the session.
        loaded: its target.
        sha256: of an arm's drafter.

    Raises:
        ParameterError: naming the arm.
    """
    found = {}
    for name, one in arms.items():
        if one.tree_figures is None:
            continue
        try:
            found[name] = read_tree_figures(one.tree_figures, tree_setup_of(loaded, sha256[name]))
        except MechanismError as error:
            raise ParameterError(f"arms[{name}].params: {error}") from None
        if one.tree_measured and found[name].costs is None:
            raise ParameterError(
                f"arms[{name}].params: `tree_budget` = 'measured', but `tree_figures` holds no costs"
            )
    return found


def hold_step_costs(arms: Mapping[str, ArmSettings], loaded: Loaded, weights_format: str) -> None:
    """Hold that the tables of costs that arms name were measured here.

    Args:
        arms: of the session.
        loaded: its target.
        weights_format: of its weights.

    Raises:
        ParameterError: naming the arm.
    """
    dtype = str(loaded.target.dtype).removeprefix("torch.")
    here = Ground(loaded.sha256, device_of(loaded.target), dtype, weights_format)
    for name, one in arms.items():
        if one.batching is not None and one.batching.costs is not None:
            try:
                read_costs(one.batching.costs, here)
            except MechanismError as error:
                raise ParameterError(f"arms[{name}].params: `step_costs`: {error}") from None


def device_of(target: Target) -> str:
    """Name of the GPU, or the CPU with its threads."""
    if target.device.type == "cuda":
        return torch.cuda.get_device_name()
    return f"cpu, {torch.get_num_threads()} threads"


def tree_setup_of(loaded: Loaded, drafter_sha256: str) -> TreeSetup:
    """What figures of a drafter's trees are measured on."""
    return TreeSetup(
        target_sha256=loaded.sha256,
        drafter_sha256=drafter_sha256,
        dtype=str(loaded.target.dtype).removeprefix("torch."),
        device=device_of(loaded.target),
    )


def setup_of(arm: ArmSettings, loaded: Loaded) -> Setup:
    """What figures of an arm's first level are measured on."""
    level = None if arm.two_level is None else arm.two_level.level_one
    return Setup(
        target_sha256=loaded.sha256,
        dtype=str(loaded.target.dtype).removeprefix("torch."),
        device=device_of(loaded.target),
        level_one="" if level is None else level.about,
        drafter=arm.drafter,
        drafts=arm.drafts,
    )
