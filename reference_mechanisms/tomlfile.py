"""A TOML file as a typed record, or one sentence that names what is wrong with it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

import msgspec

from reference_mechanisms.errors import MechanismError

T = TypeVar("T")


def read_toml(path: Path, kind: type[T], error: type[MechanismError], see: str) -> T:
    """Read a file.

    Args:
        path: the file.
        kind: of the record.
        error: what to raise.
        see: where its fields are told.

    Raises:
        MechanismError: of the type given, naming the file and the field.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), kind)
    except OSError as found:
        raise error(f"cannot read {path}: {found.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as found:
        raise error(f"{path} is not TOML: {found}") from None
    except msgspec.ValidationError as found:
        raise error(f"{path}: {found}; see {see}") from None
