"""Trials, submissions and wall clock of nested scopes: a campaign, and each explorer of a round in it.

A candidate counts once in a scope, whether it was measured now or before a restart, so that an explorer
that is started anew is told the same things in the same order. Money and tokens are the gateway's to count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from agent_loop.protocols import BudgetSpent
from agent_loop.records import Budget, Spent


class Purse:
    """What a scope may still spend; used from the threads of many explorers."""

    def __init__(
        self, scope: str, budget: Budget, clock: Callable[[], float], above: Purse | None = None
    ) -> None:
        """Spend nothing yet.

        Args:
            scope: its name, for messages.
            budget: its limits.
            clock: seconds, monotonic; the scope's begin now.
            above: the scope around it, whose limits hold, too.
        """
        self._scope = scope
        self._budget = budget
        self._clock = clock
        self._began = clock()
        self._above = above
        self._lock: threading.Lock = threading.Lock() if above is None else above._lock
        self._tried: set[str] = set()
        self._submitted: set[str] = set()

    def spend(self, tried: Iterable[str] = (), submitted: Iterable[str] = ()) -> None:
        """Count candidates by id, here and in every scope around; nowhere if a limit does not allow it.

        Raises:
            BudgetSpent: naming the limit and the scope that it belongs to.
        """
        more_tried, more_submitted = set(tried), set(submitted)
        with self._lock:
            for one in self._upwards():
                spent = Spent(
                    trials=len(one._tried | more_tried),
                    submissions=len(one._submitted | more_submitted),
                    seconds=one._clock() - one._began,
                )
                over = spent.exceeds(one._budget)
                if over is not None:
                    raise BudgetSpent(over, one._scope)
            for one in self._upwards():
                one._tried |= more_tried
                one._submitted |= more_submitted

    def _upwards(self) -> Iterator[Purse]:
        one: Purse | None = self
        while one is not None:
            yield one
            one = one._above
