"""What the doctor says: findings, and whether the two commands of the README can run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

# ok: works. note: worth knowing, nothing to mend. lack: does not work, and `mend` says how it would.
State = Literal["ok", "note", "lack"]
REPRODUCE, TESTS = "reproduce-cpu", "tests"  # sessions of nox: the two commands of the README


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    group: str
    name: str
    state: State
    said: str  # one clause
    mend: str | None = None  # one command for a shell; exactly the lacks have one
    stops: tuple[str, ...] = ()  # of REPRODUCE, TESTS: what cannot run because of this lack

    def __post_init__(self) -> None:
        """Hold that a lack has its mend, and nothing else has one.

        Raises:
            ValueError: it is otherwise.
        """
        if (self.state == "lack") != (self.mend is not None):
            raise ValueError(f"{self.group}/{self.name}: a lack, and only a lack, has a `mend`")
        if self.stops and self.state != "lack":
            raise ValueError(f"{self.group}/{self.name}: only a lack stops something")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the README, and whether it can run here."""

    session: str
    words: str  # as they are typed
    applies: bool  # False: it belongs to a checkout, and this is none
    reasons: tuple[str, ...] = ()  # why it cannot run

    @property
    def ready(self) -> bool:
        """Whether it can run, or is not meant to here."""
        return not self.reasons


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything."""

    schema: Literal["doctor/1"]
    findings: tuple[Finding, ...]
    commands: tuple[Command, ...]
    downloads: dict[str, int] = field(default_factory=dict)  # bytes that a fresh environment fetches

    @property
    def ready(self) -> bool:
        """Whether both commands can run."""
        return all(command.ready for command in self.commands)


def as_json(diagnosis: Diagnosis) -> str:
    """Canonical JSON, with `ready` beside what it follows from."""
    plain = dataclasses.asdict(diagnosis)
    for command, told in zip(plain["commands"], diagnosis.commands, strict=True):
        command["ready"] = told.ready
    return json.dumps({**plain, "ready": diagnosis.ready}, sort_keys=True, separators=(",", ":"))


def judge(findings: Iterable[Finding], checkout: bool) -> tuple[Command, ...]:
    """Whether the commands can run, from what was found.

    Args:
        findings: of all parts.
        checkout: whether this is a clone; from a wheel the run itself is meant, and no tests are there.
    """
    known = tuple(findings)

    def reasons(session: str) -> tuple[str, ...]:
        return tuple(f"{one.name}: {one.said}" for one in known if session in one.stops)

    run = "python -m pip install nox && python -m nox -s" if checkout else "specpilot-harness run"
    return (
        Command(REPRODUCE, f"{run} reproduce-cpu", applies=True, reasons=reasons(REPRODUCE)),
        Command(
            TESTS,
            "python -m pip install nox && python -m nox -s tests",
            applies=checkout,
            reasons=reasons(TESTS) if checkout else (),
        ),
    )
