"""How long work shows itself: one protocol, a rich version for people, a silent one for tests."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Reporter(Protocol):
    """Receives the stages of a run."""

    def note(self, text: str) -> None:
        """Say one line."""
        ...

    def stage(self, name: str, total: int) -> Callable[[int], None]:
        """Start a stage of `total` units; the returned function advances it."""
        ...


class SilentReporter:
    """Says nothing."""

    def note(self, text: str) -> None:
        """See `Reporter`."""

    def stage(self, name: str, total: int) -> Callable[[int], None]:
        """See `Reporter`."""
        del name, total
        return lambda _: None


class RichReporter:
    """Progress bars with elapsed and remaining time, on standard error.

    Where standard error is no terminal, each stage is one line instead of a redrawn bar.
    """

    def __init__(self) -> None:
        """Prepare the console."""
        self._console = Console(stderr=True)
        self._live = self._console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._live,
        )

    def __enter__(self) -> Self:
        """Start drawing."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing."""
        self._progress.stop()

    def note(self, text: str) -> None:
        """See `Reporter`."""
        self._console.print(text, highlight=False, markup=False)

    def stage(self, name: str, total: int) -> Callable[[int], None]:
        """See `Reporter`."""
        if not self._live:
            self.note(f"{name} ({total})")
            return _milestones(self.note, name, total)
        task: TaskID = self._progress.add_task(name, total=total)
        return lambda amount: self._progress.advance(task, amount)


def _milestones(say: Callable[[str], None], name: str, total: int) -> Callable[[int], None]:
    """For logs: a line at each quarter."""
    done, told = 0, 0

    def advance(amount: int) -> None:
        nonlocal done, told
        done += amount
        quarter = 4 * done // max(total, 1)
        if quarter > told:
            told = quarter
            say(f"{name}: {done} of {total}")

    return advance
