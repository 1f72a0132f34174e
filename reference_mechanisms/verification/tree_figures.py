"""Measured figures of a drafter's trees as a file: what children are worth, and what steps cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reference_mechanisms.verification.budgeting import Costs
from reference_mechanisms.verification.calibrating import Calibration
from reference_mechanisms.verification.figures_file import FiguresFile, hold_setup

SCHEMA = "tree-figures/2"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSetup:
    """What figures hold for; on anything else they are refused."""

    target_sha256: str
    drafter_sha256: str
    dtype: str
    device: str  # name of the GPU, or "cpu" with its threads


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFigures:
    """Of one drafter and its target."""

    calibration: Calibration
    costs: Costs | None = None  # of single requests; None: not measured
    tokens: Mapping[int, float] | None = None  # rows of a step -> its tokens, mean; None: not measured


FILE = FiguresFile(SCHEMA, TreeSetup, TreeFigures, "figures", "trees")
write_tree_figures = FILE.write


def read_tree_figures(path: Path, setup: TreeSetup) -> TreeFigures:
    """Figures for this setup; the device counts only where costs were measured.

    Raises:
        FiguresError: the file is none, or was measured on another setup.
    """
    theirs, figures = FILE.read(path)
    timed = () if figures.costs is None else ("dtype", "device")
    hold_setup(path, setup, theirs, ("target_sha256", "drafter_sha256", *timed))
    return figures
