"""Measured figures of a first level as a file, and the key of what they were measured on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reference_mechanisms.verification.figures_file import FiguresFile, hold_setup
from reference_mechanisms.verification.two_level.gain import Measured

SCHEMA = "two-level-figures/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What figures hold for; on anything else they are refused."""

    target_sha256: str
    dtype: str
    device: str  # name of the GPU, or "cpu" with its threads
    level_one: str  # `LevelOne.about`
    drafter: str
    drafts: int


FILE = FiguresFile(SCHEMA, Setup, Measured, "measured", "a first level")
write_figures = FILE.write


def read_figures(path: Path, setup: Setup) -> Measured:
    """Figures for this setup.

    Raises:
        FiguresError: the file is none, or was measured on another setup.
    """
    theirs, measured = FILE.read(path)
    hold_setup(path, setup, theirs, tuple(Setup.__dataclass_fields__))
    return measured
