"""Measured figures as a file, with what they were measured on; on anything else they are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from reference_mechanisms.errors import MechanismError
from reference_mechanisms.jsonfile import write_json

S = TypeVar("S")
F = TypeVar("F")


class FiguresError(MechanismError):
    """A file of figures cannot be used."""


class FiguresFile(NamedTuple, Generic[S, F]):
    """A kind of file.

    Attributes:
        schema: its name and version.
        setup: type of what figures are measured on.
        figures: their type.
        key: of the figures in the file.
        what: they are of, for messages.
    """

    schema: str
    setup: type[S]
    figures: type[F]
    key: str
    what: str

    def write(self, path: Path, setup: S, figures: F) -> None:
        """Write both, whole or not at all."""
        write_json(path, {"schema": self.schema, "setup": setup, self.key: figures})

    def read(self, path: Path) -> tuple[S, F]:
        """Setup and figures.

        Raises:
            FiguresError: the file is none of this kind.
        """
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if content.get("schema") != self.schema:
                raise FiguresError(
                    f"{path}: `schema` is {content.get('schema')!r}, not {self.schema!r}; measure again"
                )
            return (
                msgspec.convert(content["setup"], self.setup),
                msgspec.convert(content[self.key], self.figures, strict=False),
            )
        except (OSError, ValueError, KeyError, AttributeError, msgspec.ValidationError) as error:
            raise FiguresError(f"{path} holds no figures of {self.what} ({error}); measure them") from None


def hold_setup(path: Path, here: object, there: object, fields: Sequence[str]) -> None:
    """Hold that figures were measured on what is here.

    Args:
        path: of the figures.
        here: the setup of this run.
        there: that of the figures.
        fields: that must be equal.

    Raises:
        FiguresError: naming the first field that differs.
    """
    for field in fields:
        mine, other = getattr(here, field), getattr(there, field)
        if mine != other:
            raise FiguresError(
                f"{path}: measured with `{field}` {other!r}, here it is {mine!r}; measure again"
            )
