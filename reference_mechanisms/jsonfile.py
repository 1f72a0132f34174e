"""A JSON file that is written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec


def write_json(path: Path, value: object) -> None:
    """Replace a file; its folder is made where it is missing.

    Args:
        path: the file.
        value: mappings, sequences, numbers, text, records.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(msgspec.to_builtins(value), indent=1) + "\n")  # ASCII
    temporary.replace(path)
