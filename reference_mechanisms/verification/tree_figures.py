"""Measured figures of a drafter's trees as a file: what children are worth, and what steps cost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from reference_mechanisms.errors import MechanismError
from reference_mechanisms.verification.budgeting import Costs
from reference_mechanisms.verification.calibrating import Calibration

SCHEMA = "tree-figures/1"


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


class TreeFiguresError(MechanismError):
    """A file of figures cannot be used."""


def write_tree_figures(path: Path, setup: TreeSetup, figures: TreeFigures) -> None:
    """Write both, whole or not at all."""
    content = {"schema": SCHEMA, "setup": msgspec.to_builtins(setup), "figures": msgspec.to_builtins(figures)}
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def read_tree_figures(path: Path, setup: TreeSetup) -> TreeFigures:
    """Figures for this setup; the device counts only where costs were measured.

    Raises:
        TreeFiguresError: the file is none, or was measured on another setup.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content.get("schema") != SCHEMA:
            raise TreeFiguresError(
                f"{path}: `schema` is {content.get('schema')!r}, not {SCHEMA!r}; measure again"
            )
        theirs = msgspec.convert(content["setup"], TreeSetup)
        figures = msgspec.convert(content["figures"], TreeFigures, strict=False)
    except (OSError, ValueError, KeyError, AttributeError, msgspec.ValidationError) as error:
        raise TreeFiguresError(f"{path} holds no figures of trees ({error}); measure them") from None
    fields = ["target_sha256", "drafter_sha256"]
    if figures.costs is not None:
        fields += ["dtype", "device"]
    for field in fields:
        mine, other = getattr(setup, field), getattr(theirs, field)
        if mine != other:
            raise TreeFiguresError(
                f"{path}: measured with `{field}` {other!r}, here it is {mine!r}; measure again"
            )
    return figures
