"""Engines in processes of their own with one request set: stock with each draft length, then ours beside it.

The first finds stock's best draft length at each load; in the second all are resident and timed in turn.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from reference_mechanisms.batching.bench.lines import Served, Wanted
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.weight12.plugin.step_times.engine import Engine, EngineFault, Facts
from reference_mechanisms.weight12.plugin.step_times.engine_arguments import ENVIRONMENT
from reference_mechanisms.weight12.plugin.step_times.rounds import gpu_state

OWN, RELEASED, TUNED = "own", "stock-released", "stock-k"
ANSWER_S = 300.0  # for one request set; the first one of ours decodes it without drafts too
READY_S = 400.0  # for an engine to come up

Command = Callable[[str], Sequence[str]]  # of the process of an engine


def tuned(drafts: int) -> str:
    """Name of stock tuned with a draft length."""
    return f"{TUNED}{drafts}"


def drafts_of(name: str) -> int:
    """The draft length in such a name."""
    return int(name.removeprefix(TUNED))


class BesideError(MechanismError):
    """An engine that is needed could not be timed: the message says why."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is timed.

    Attributes:
        concurrencies: loads.
        requests: of the set at each load.
        drafts: draft lengths that stock is tried with; none are, where `best` has every load.
        best: stock's draft length by load, where it is known.
        rounds: that count; one more goes before them to warm up.
        resident: engines that are tried at a time.
        limit_s: of the whole; rounds that do not fit are left out.
    """

    concurrencies: tuple[int, ...]
    requests: Mapping[int, int]
    drafts: tuple[int, ...]
    best: Mapping[int, int] = {}
    rounds: int = 5
    resident: int = 3
    limit_s: float = 1200.0


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """A request set that an engine served."""

    engine: str
    round: int
    served: Served


class Found(msgspec.Struct, kw_only=True):
    """What came of it, in the order in which it was timed.

    Attributes:
        facts: of each engine that came up.
        faults: of each engine that was left out.
        tried: stock with each draft length.
        best: stock's draft length by load.
        timed: in turn, beside each other.
        gpu: its clocks, power and temperature after each round.
        rounds: that are whole.
    """

    facts: dict[str, Facts] = msgspec.field(default_factory=dict)
    faults: dict[str, str] = msgspec.field(default_factory=dict)
    tried: list[Timed] = msgspec.field(default_factory=list)
    best: dict[int, int] = msgspec.field(default_factory=dict)
    timed: list[Timed] = msgspec.field(default_factory=list)
    gpu: list[str] = msgspec.field(default_factory=list)
    rounds: int = 0


class Bench:
    """One measurement."""

    def __init__(self, plan: Plan, command: Command, logs: Path, heard: Callable[[Found, str], None]) -> None:
        """Prepare; nothing is started.

        Args:
            plan: what to time.
            command: of an engine's process, by its name.
            logs: folder for a log of each engine.
            heard: told of what there is so far, and in words.
        """
        self._plan, self._command, self._logs, self._heard = plan, command, logs, heard
        self._found = Found(best=dict(plan.best))
        self._deadline = time.monotonic() + plan.limit_s
        logs.mkdir(parents=True, exist_ok=True)

    def run(self) -> Found:
        """Try and time; every process is ended at the end.

        Raises:
            BesideError: ours, or stock as released, could not be timed, or no draft length of stock.
        """
        missing = [load for load in self._plan.concurrencies if load not in self._found.best]
        if missing:
            self._try(missing)
        self._time()
        return self._found

    def step_times(self, short: int) -> Found:
        """Time ours and stock as released, each request set twice in a round: cut short, and whole.

        Args:
            short: tokens of the short outputs.

        Raises:
            BesideError: one of them could not be timed.
        """
        self._rounds((OWN, RELEASED), lambda _load: (OWN, RELEASED), (short, 0))
        return self._found

    def _try(self, loads: Sequence[int]) -> None:
        """Stock with each draft length at each load: once to warm up, once for the time."""
        names = [tuned(drafts) for drafts in self._plan.drafts]
        for first in range(0, len(names), self._plan.resident):
            group = names[first : first + self._plan.resident]
            with self._engines(group) as engines:
                for name, engine in list(engines.items()):
                    for load, number in itertools.product(loads, (-1, 0)):
                        one = self._served(name, engine, load, number)
                        if one is None:
                            break
                        if number == 0:
                            self._found.tried.append(one)
                    self._say(f"{name} is tried")
        for load in loads:
            speeds = {
                one.engine: one.served.tokens_per_second
                for one in self._found.tried
                if one.served.concurrency == load
            }
            if not speeds:
                raise BesideError(f"no draft length of stock could be timed at {load}: {self._found.faults}")
            best = max(speeds, key=speeds.__getitem__)
            self._found.best[load] = next(k for k in self._plan.drafts if tuned(k) == best)
            self._say(f"{load} requests at a time: {best} is stock's best")

    def _time(self) -> None:
        """All of a round, every second one in the reverse order."""
        best = self._found.best
        names = [OWN, RELEASED, *sorted({tuned(best[load]) for load in self._plan.concurrencies})]
        self._rounds(names, lambda load: (OWN, RELEASED, tuned(best[load])), (0,))

    def _rounds(
        self, names: Sequence[str], at: Callable[[int], Sequence[str]], lengths: Sequence[int]
    ) -> None:
        """Engines in turn, round by round, until the time is over.

        Args:
            names: of all engines.
            at: those of a load.
            lengths: tokens of each output, one request set behind the other; 0: as the traces have it.
        """
        with self._engines(names) as engines:
            for number in range(-1, self._plan.rounds):
                began = time.monotonic()
                for load in self._plan.concurrencies:
                    order = at(load)
                    for name in reversed(order) if number % 2 else order:
                        served = [self._needed(name, engines, load, number, one) for one in lengths]
                        if number >= 0:
                            self._found.timed += served
                self._found.gpu.extend(gpu_state())
                if number >= 0:
                    self._found.rounds += 1
                self._say(f"round {number + 1} of {self._plan.rounds}")
                now = time.monotonic()
                if number >= 0 and now + (now - began) > self._deadline:
                    return

    @contextlib.contextmanager
    def _engines(self, names: Sequence[str]) -> Iterator[dict[str, Engine]]:
        """Start engines together; those that come up."""
        with contextlib.ExitStack() as stack:
            started = {
                name: stack.enter_context(
                    Engine(self._command(name), ENVIRONMENT, self._logs / f"{name}.log")
                )
                for name in names
            }
            engines, until = dict(started), time.monotonic() + READY_S
            for name, engine in started.items():
                try:
                    self._found.facts[name] = engine.ready(max(0.0, until - time.monotonic()))
                except EngineFault as fault:
                    engines.pop(name).end()
                    self._found.faults[name] = f"did not come up: {fault}"
            self._say(f"up: {', '.join(engines) or 'no engine'}")
            yield engines

    def _needed(self, name: str, engines: Mapping[str, Engine], load: int, number: int, tokens: int) -> Timed:
        one = self._served(name, engines[name], load, number, tokens) if name in engines else None
        if one is None:
            raise BesideError(f"{name}: {self._found.faults.get(name, 'gave no time')}")
        return one

    def _served(self, name: str, engine: Engine, load: int, number: int, tokens: int = 0) -> Timed | None:
        """One request set; None: the engine gives no more."""
        count = self._plan.requests[load]
        try:
            served = engine.ask(Wanted(concurrency=load, requests=count, tokens=tokens), Served, ANSWER_S)
            if (served.concurrency, served.requests) != (load, count):
                raise EngineFault(f"told of {served.requests} requests at {served.concurrency}")
        except EngineFault as fault:
            self._found.faults[name] = f"{load} at a time, round {number}: {fault}"
            return None
        return Timed(engine=name, round=number, served=served)

    def _say(self, words: str) -> None:
        self._heard(self._found, words)
