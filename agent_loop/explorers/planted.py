"""An explorer that first tries candidates from files: a person's ideas, or cheats planted on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent_loop.protocols import Desk, Explorer
from agent_loop.records import Budget, Candidate
from harness.codec import from_json
from harness.errors import UsageError


class PlantedExplorer:
    """See `agent_loop.protocols.Explorer`."""

    def __init__(self, inner: Explorer, files: Sequence[Path]) -> None:
        """Read the candidates.

        Raises:
            UsageError: a file cannot be read.
            DataError: one is no candidate; the field is named.
        """
        self._inner = inner
        self._candidates = [_read(path) for path in files]

    @property
    def name(self) -> str:
        """See `Explorer`."""
        return self._inner.name

    def explore(self, desk: Desk, budget: Budget, seed: int) -> None:
        """See `Explorer`; what passes is submitted as every other candidate."""
        for candidate, told in zip(self._candidates, desk.trial(self._candidates), strict=True):
            if told.passed:
                desk.submit(candidate)
        self._inner.explore(desk, budget, seed)


def _read(path: Path) -> Candidate:
    try:
        return from_json(path.read_bytes(), Candidate, str(path))
    except OSError as error:
        raise UsageError(f"--plant {path}: cannot be read: {error.strerror}") from None
