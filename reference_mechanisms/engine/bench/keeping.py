"""What a long comparison of logits has found, a line a request: a run that was ended goes on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Kept:
    """Lines of JSON behind a head that says what was compared; lines of another comparison are dropped."""

    def __init__(self, path: Path | None, setup: Mapping[str, Any]) -> None:
        """Read what is there.

        Args:
            path: of the file; None: nothing is kept.
            setup: everything that the results hang on, of types that JSON has.
        """
        self._path, self._found = path, dict[tuple[str, int], dict[str, Any]]()
        if path is None:
            return
        head = json.dumps({"setup": setup}, sort_keys=True)
        lines = path.read_text().splitlines() if path.is_file() else []
        whole: list[str] = []
        if lines and lines[0] == head:
            for line in lines[1:]:
                try:
                    one = json.loads(line)
                    self._found[one["engine"], one["request"]] = one
                except (ValueError, KeyError, TypeError):
                    continue  # torn by the end of the run that wrote it
                whole.append(line)
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(f"{line}\n" for line in (head, *whole)))
        temporary.replace(path)

    def get(self, engine: str, request: int) -> dict[str, Any] | None:
        """What is known of a request in an engine."""
        return self._found.get((engine, request))

    def add(self, engine: str, request: int, **found: Any) -> None:
        """Write what was found."""
        one = {"engine": engine, "request": request, **found}
        self._found[engine, request] = one
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(one) + "\n")
