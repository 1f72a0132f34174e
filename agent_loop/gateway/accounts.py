"""Money and tokens of nested scopes: campaign, explorer, attempt. What may be spent is reserved first.

Every change is a line of a ledger, written before it takes effect. After a crash a reservation that was
never settled counts in full: the request may have been answered, and billed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agent_loop.protocols import BudgetSpent
from agent_loop.records import Budget, Spent
from harness.codec import Record
from harness.storage import append_lines, cut_torn_tail, read_lines

LEDGER = "ledger.jsonl"  # in the gateway's folder


class Line(Record, frozen=True):
    """One line of the ledger."""

    kind: Literal["began", "opened", "reserved", "settled"]
    life_s: float  # seconds since this life of the gateway began
    scope: str = ""  # "campaign/explorer/attempt"
    number: int = 0  # of the reservation
    budget: Budget | None = None
    spent: Spent | None = None  # the most of a reservation; what was used of a settlement


@dataclass(slots=True)
class Account:
    """What one scope may spend, and has spent."""

    scope: str
    budget: Budget
    parent: Account | None
    began: float  # seconds; `life_s` of its first use in this life
    earlier: float = 0.0  # seconds of earlier lives
    settled: Spent = field(default_factory=Spent)
    reserved: dict[int, Spent] = field(default_factory=dict)

    def spent(self, now: float) -> Spent:
        """All of it, reservations and wall clock included."""
        total = self.settled.plus(Spent(seconds=self.earlier + now - self.began))
        for one in self.reserved.values():
            total = total.plus(one)
        return total


class Accounts:
    """The scopes of one campaign and their ledger; used by one thread."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Read what earlier lives have spent, and begin a new one.

        Args:
            path: the ledger.
            clock: seconds, monotonic.

        Raises:
            DataError: the ledger is damaged before its last line.
        """
        self._path = path
        self._clock = clock
        self._zero = clock()
        self._earlier: dict[str, Spent] = {}
        self._accounts: dict[str, Account] = {}
        self._numbers = itertools.count(1)
        if path.exists():
            self._earlier = read_spent(path)
            cut_torn_tail(path)
        self._write("began")

    def open(self, scope: str, budget: Budget) -> Account:
        """An account; its parent is open. What it spent in earlier lives stands."""
        if scope in self._accounts:
            account = self._accounts[scope]
            account.budget = budget
        else:
            above, _, _ = scope.rpartition("/")
            account = Account(scope, budget, self._accounts[above] if above else None, self.now)
            before = self._earlier.get(scope, Spent())
            account.earlier = before.seconds
            account.settled = before.plus(Spent(seconds=-before.seconds))
            self._accounts[scope] = account
        self._write("opened", scope, budget=budget)
        return account

    def reserve(self, account: Account, most: Spent) -> int:
        """Set aside the most that a request can cost, in the account and all above it.

        Returns:
            The number to settle it by.

        Raises:
            BudgetSpent: it does not fit; nothing is set aside.
        """
        for one in _upwards(account):
            over = one.spent(self.now).plus(most).exceeds(one.budget)
            if over is not None:
                raise BudgetSpent(over, one.scope)
        number = next(self._numbers)
        self._write("reserved", account.scope, number, spent=most)
        for one in _upwards(account):
            one.reserved[number] = most
        return number

    def settle(self, account: Account, number: int, used: Spent) -> None:
        """Replace a reservation by what was used."""
        self._write("settled", account.scope, number, spent=used)
        for one in _upwards(account):
            del one.reserved[number]
            one.settled = one.settled.plus(used)

    def told(self, account: Account) -> dict[str, dict[str, object]]:
        """What an account and those above it may spend and have spent."""
        return {one.scope: {"budget": one.budget, "spent": one.spent(self.now)} for one in _upwards(account)}

    @property
    def now(self) -> float:
        """Seconds of this life."""
        return self._clock() - self._zero

    def _write(
        self,
        kind: Literal["began", "opened", "reserved", "settled"],
        scope: str = "",
        number: int = 0,
        budget: Budget | None = None,
        spent: Spent | None = None,
    ) -> None:
        line = Line(
            kind=kind, life_s=round(self.now, 3), scope=scope, number=number, budget=budget, spent=spent
        )
        append_lines(self._path, [line])


def read_spent(path: Path) -> dict[str, Spent]:
    """What every scope has spent by its ledger; what was reserved and never settled counts in full.

    Raises:
        DataError: the ledger is damaged before its last line.
    """
    found: dict[str, Spent] = {}
    opened: dict[tuple[int, str], tuple[float, float]] = {}
    pending: dict[tuple[int, int], Line] = {}
    life = 0

    def add(scope: str, more: Spent) -> None:
        for one in _scopes(scope):
            found[one] = found.get(one, Spent()).plus(more)

    for line in read_lines(path, Line, drop_torn_tail=True):
        if line.kind == "began":
            life += 1
            continue
        for scope in _scopes(line.scope):
            first, _ = opened.get((life, scope), (line.life_s, 0.0))
            opened[life, scope] = (first, line.life_s)
        if line.kind == "reserved":
            pending[life, line.number] = line
        elif line.kind == "settled":
            pending.pop((life, line.number), None)
            add(line.scope, line.spent or Spent())
    for line in pending.values():
        add(line.scope, line.spent or Spent())
    for (_, scope), (first, last) in opened.items():
        found[scope] = found.get(scope, Spent()).plus(Spent(seconds=last - first))
    return found


def _upwards(account: Account | None) -> list[Account]:
    found = []
    while account is not None:
        found.append(account)
        account = account.parent
    return found


def _scopes(scope: str) -> list[str]:
    """A scope and all above it."""
    parts = scope.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))] if scope else []
