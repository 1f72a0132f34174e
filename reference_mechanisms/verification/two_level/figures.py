"""Measured figures of a first level as a file, and the key of what they were measured on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from reference_mechanisms.errors import MechanismError
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


class FiguresError(MechanismError):
    """A file of figures cannot be used."""


def write_figures(path: Path, setup: Setup, measured: Measured) -> None:
    """Write both, whole or not at all."""
    content = {
        "schema": SCHEMA,
        "setup": msgspec.to_builtins(setup),
        "measured": msgspec.to_builtins(measured),
    }
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def read_figures(path: Path, setup: Setup) -> Measured:
    """Figures for this setup.

    Raises:
        FiguresError: the file is none, or was measured on another setup.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content.get("schema") != SCHEMA:
            raise FiguresError(
                f"{path}: `schema` is {content.get('schema')!r}, not {SCHEMA!r}; measure again"
            )
        theirs = msgspec.convert(content["setup"], Setup)
        measured = msgspec.convert(content["measured"], Measured, strict=False)
    except (OSError, ValueError, KeyError, AttributeError, msgspec.ValidationError) as error:
        raise FiguresError(f"{path} holds no figures of a first level ({error}); measure them") from None
    for field in Setup.__dataclass_fields__:
        mine, other = getattr(setup, field), getattr(theirs, field)
        if mine != other:
            raise FiguresError(
                f"{path}: measured with `{field}` {other!r}, here it is {mine!r}; measure again"
            )
    return measured
