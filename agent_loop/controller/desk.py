"""The explorer's side of the controller: calls from its thread, answered by the one that writes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agent_loop.controller.purse import Purse
from agent_loop.protocols import Brief, BudgetSpent, Recalled
from agent_loop.records import Candidate, Told

Kind = Literal["trial", "submit", "recall", "heard", "ended"]


@dataclass(slots=True)
class Call:
    """One question, and where its answer goes."""

    kind: Kind
    explorer: str
    payload: Any = None
    answer: queue.Queue[Any] = field(default_factory=lambda: queue.Queue(1))


class QueueDesk:
    """See `agent_loop.protocols.Desk`."""

    def __init__(
        self, calls: queue.Queue[Call], explorer: str, brief: Brief, worktree: Path, purse: Purse
    ) -> None:
        """A desk of one explorer; `calls` is read by the controller."""
        self._calls = calls
        self._explorer = explorer
        self._brief = brief
        self._worktree = worktree
        self._purse = purse

    @property
    def brief(self) -> Brief:
        """See `Desk`."""
        return self._brief

    @property
    def worktree(self) -> Path:
        """See `Desk`."""
        self._worktree.mkdir(parents=True, exist_ok=True)
        return self._worktree

    def trial(self, candidates: Sequence[Candidate]) -> list[Told]:
        """See `Desk`."""
        self._purse.spend(tried=[one.id for one in candidates])
        found: list[Told] = self._ask("trial", list(candidates))
        return found

    def recall(self, words: str = "", limit: int = 8) -> list[Recalled]:
        """See `Desk`."""
        found: list[Recalled] = self._ask("recall", (words, limit))
        return found

    def submit(self, candidate: Candidate) -> Told:
        """See `Desk`; what was not tried yet is a trial, too."""
        self._purse.spend(tried=[candidate.id], submitted=[candidate.id])
        found: Told = self._ask("submit", candidate)
        return found

    def heard(self) -> list[Told]:
        """See `Desk`."""
        found: list[Told] = self._ask("heard", None)
        return found

    def _ask(self, kind: Kind, payload: Any) -> Any:
        call = Call(kind, self._explorer, payload)
        self._calls.put(call)
        return call.answer.get()


def start(name: str, work: Callable[[], None], calls: queue.Queue[Call]) -> None:
    """Run an explorer in its own thread; its end is a call, too, with the error that ended it."""

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BudgetSpent:
            pass
        except Exception as raised:  # noqa: BLE001 - an explorer's fault ends the explorer, not the campaign
            error = raised
        calls.put(Call("ended", name, error))

    threading.Thread(target=run, name=f"explorer {name}", daemon=True).start()
