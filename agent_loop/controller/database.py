"""The controller's SQLite file: one writer, every decision an event in a hash chain.

Events are append-only; each holds the hash of the one before. A stage that is asked for twice is
answered from its verdict, so that a controller that was killed goes on where it was. The ledger of
confirm slots is written, synced, before a slot is used.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from agent_loop.records import Candidate, Stage, Verdict
from agent_loop.sqlite import open_file
from harness.codec import canonical_json, from_json
from harness.errors import DataError, InvalidRun, UsageError

VERSION = 2
TRIAL: tuple[Stage, ...] = ("policy", "build", "lossless", "screen")  # a trial ends in one of them
START = "0" * 64  # in place of the hash before the first event
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE event (
    seq INTEGER PRIMARY KEY, at TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL
) STRICT;
CREATE TABLE candidate (id TEXT PRIMARY KEY, explorer TEXT NOT NULL, body TEXT NOT NULL) STRICT;
CREATE TABLE verdict (
    candidate TEXT NOT NULL REFERENCES candidate, stage TEXT NOT NULL, body TEXT NOT NULL,
    event INTEGER NOT NULL REFERENCES event, PRIMARY KEY (candidate, stage)
) STRICT;
CREATE TABLE tuning (
    number INTEGER PRIMARY KEY, candidate TEXT NOT NULL UNIQUE, body TEXT NOT NULL, verdict TEXT NOT NULL,
    event INTEGER NOT NULL REFERENCES event
) STRICT;
CREATE TABLE submission (
    candidate TEXT PRIMARY KEY REFERENCES candidate, explorer TEXT NOT NULL, round INTEGER NOT NULL
) STRICT;
CREATE TABLE slot (
    number INTEGER PRIMARY KEY, candidate TEXT NOT NULL REFERENCES candidate, alpha REAL NOT NULL,
    line TEXT
) STRICT;
"""
R = TypeVar("R")


class Event(NamedTuple):
    """One line of the chain."""

    seq: int
    at: str
    kind: str
    body: str
    hash: str


class Slot(NamedTuple):
    """A confirm slot that was spent; `line` is None until the other process has answered."""

    number: int
    candidate: str
    alpha: float
    line: str | None


class Database:
    """All state of a campaign."""

    def __init__(self, path: Path, now: Callable[[], str], *, must_exist: bool = False) -> None:
        """Open, or create.

        Raises:
            UsageError: it must exist, and does not.
            InvalidRun: it cannot be opened.
            DataError: it is of another version.
        """
        if must_exist and not path.is_file():
            raise UsageError(f"{path} is not there; give the folder of a campaign that was run")
        self._now = now
        try:
            self._db = open_file(path, SCHEMA, VERSION)
        except sqlite3.Error as error:
            raise InvalidRun(f"cannot open {path}: {error}") from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def claim(self, name: str, value: str) -> None:
        """Hold that a fact of the campaign is what it was when it began.

        Raises:
            UsageError: it is not.
        """
        found = self.fact(name)
        if found is None:
            self._write(lambda: self._db.execute("INSERT INTO meta VALUES (?, ?)", (name, value)))
        elif found != value:
            raise UsageError(
                f"this folder belongs to a campaign with another {name} ({found[:12]}, now {value[:12]}); "
                "choose another --out"
            )

    def fact(self, name: str) -> str | None:
        """A fact that was claimed."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def tell(self, kind: str, body: object) -> int:
        """Append an event; its number."""
        return self._write(lambda: self._append(kind, body))

    def add(self, candidate: Candidate) -> None:
        """Register a candidate; the first who proposes it keeps it."""
        if self.candidate(candidate.id) is not None:
            return

        def write() -> None:
            text = canonical_json(candidate).decode()
            self._db.execute(
                "INSERT INTO candidate VALUES (?, ?, ?)", (candidate.id, candidate.explorer, text)
            )
            self._append("proposed", {"candidate": candidate.id, "explorer": candidate.explorer})

        self._write(write)

    def candidate(self, name: str) -> Candidate | None:
        """A candidate by its id."""
        row = self._db.execute("SELECT body FROM candidate WHERE id = ?", (name,)).fetchone()
        return None if row is None else from_json(row[0], Candidate, f"candidate {name}")

    def candidates(self) -> list[Candidate]:
        """All of them, in the order in which they were proposed."""
        rows = self._db.execute("SELECT body FROM candidate ORDER BY rowid").fetchall()
        return [from_json(row[0], Candidate, "candidate") for row in rows]

    def decide(self, verdict: Verdict) -> None:
        """Store a verdict; the first of a stage stands."""
        if self.verdict(verdict.candidate_id, verdict.stage) is not None:
            return

        def write() -> None:
            text = canonical_json(verdict).decode()
            event = self._append("verdict", verdict)
            self._db.execute(
                "INSERT INTO verdict VALUES (?, ?, ?, ?)",
                (verdict.candidate_id, verdict.stage, text, event),
            )

        self._write(write)

    def verdict(self, candidate: str, stage: Stage) -> Verdict | None:
        """What a stage decided, if it has."""
        row = self._db.execute(
            "SELECT body FROM verdict WHERE candidate = ? AND stage = ?", (candidate, stage)
        ).fetchone()
        return None if row is None else from_json(row[0], Verdict, f"verdict on {candidate}")

    def verdicts(self) -> list[Verdict]:
        """All verdicts, in the order in which they fell."""
        rows = self._db.execute("SELECT body FROM verdict ORDER BY event").fetchall()
        return [from_json(row[0], Verdict, "verdict") for row in rows]

    def tried(self, candidate: str) -> Verdict | None:
        """What its trial decided, whichever stage of it; not that it wants a person who has read it."""
        stages = TRIAL[1:] if self.released(candidate) else TRIAL
        found = [verdict for stage in stages if (verdict := self.verdict(candidate, stage)) is not None]
        return found[0] if found else None

    def release(self, candidate: str, reason: str) -> None:
        """Note that a person has read a candidate that wanted one, and lets it be tried like any other.

        Raises:
            UsageError: it wants nobody.
        """
        verdict = self.verdict(candidate, "policy")
        if verdict is None or verdict.outcome != "NEEDS_HUMAN":
            raise UsageError(
                f"candidate {candidate} does not wait for a person; `loop review` shows who does"
            )
        if not self.released(candidate):
            self.tell("released", {"candidate": candidate, "reason": reason})

    def released(self, candidate: str) -> bool:
        """Whether a person has let it go on."""
        rows = self._db.execute("SELECT body FROM event WHERE kind = 'released'").fetchall()
        return any(json.loads(row[0])["candidate"] == candidate for row in rows)

    def last(self, candidate: str) -> Verdict | None:
        """The newest verdict on a candidate; an ablation decides nothing of it."""
        row = self._db.execute(
            "SELECT body FROM verdict WHERE candidate = ? AND stage != 'ablate' ORDER BY event DESC LIMIT 1",
            (candidate,),
        ).fetchone()
        return None if row is None else from_json(row[0], Verdict, f"verdict on {candidate}")

    def tuned(self, candidate: Candidate, verdict: Verdict) -> None:
        """Store a trial of stock's own knobs; the first of an arm stands."""

        def write() -> None:
            known = self._db.execute("SELECT 1 FROM tuning WHERE candidate = ?", (candidate.id,)).fetchone()
            if known is None:
                event = self._append("tuning", {"params": candidate.params, "verdict": verdict})
                row = (candidate.id, canonical_json(candidate).decode(), canonical_json(verdict).decode())
                self._db.execute(
                    "INSERT INTO tuning (candidate, body, verdict, event) VALUES (?, ?, ?, ?)", (*row, event)
                )

        self._write(write)

    def tuning(self) -> list[tuple[Candidate, Verdict]]:
        """All trials of stock's own knobs, in order."""
        rows = self._db.execute("SELECT body, verdict FROM tuning ORDER BY number").fetchall()
        return [
            (from_json(body, Candidate, "tuning"), from_json(verdict, Verdict, "tuning"))
            for body, verdict in rows
        ]

    def submit(self, candidate: Candidate, explorer: str, number: int) -> None:
        """Note that an explorer asks for a confirmation in a round."""

        def write() -> None:
            known = self._db.execute("SELECT 1 FROM submission WHERE candidate = ?", (candidate.id,))
            if known.fetchone() is None:
                self._db.execute("INSERT INTO submission VALUES (?, ?, ?)", (candidate.id, explorer, number))
                self._append("submitted", {"candidate": candidate.id, "explorer": explorer, "round": number})

        self._write(write)

    def submissions(self, explorer: str | None = None) -> list[tuple[Candidate, int]]:
        """Submitted candidates with their round, in order."""
        rows = self._db.execute("SELECT candidate, explorer, round FROM submission ORDER BY rowid").fetchall()
        found = [(self.candidate(row[0]), int(row[2])) for row in rows if explorer in (None, row[1])]
        return [(candidate, number) for candidate, number in found if candidate is not None]

    def open_slot(self, candidate: Candidate, alpha: float) -> int:
        """Spend a confirm slot, before it is used; its number."""

        def write() -> int:
            (number,) = self._db.execute("SELECT COUNT(*) FROM slot").fetchone()
            self._db.execute("INSERT INTO slot VALUES (?, ?, ?, NULL)", (number, candidate.id, alpha))
            self._append("slot", {"number": number, "candidate": candidate.id, "alpha": alpha})
            return int(number)

        return self._write(write)

    def close_slot(self, number: int, line: str) -> None:
        """Write down what the other process said."""

        def write() -> None:
            self._db.execute("UPDATE slot SET line = ? WHERE number = ?", (line, number))
            self._append("slot-closed", {"number": number, "line": line})

        self._write(write)

    def slots(self) -> list[Slot]:
        """All spent slots."""
        rows = self._db.execute("SELECT number, candidate, alpha, line FROM slot ORDER BY number")
        return [Slot(*row) for row in rows.fetchall()]

    def events(self, after: int = 0) -> list[Event]:
        """Events behind a number, in order."""
        rows = self._db.execute(
            "SELECT seq, at, kind, body, hash FROM event WHERE seq > ? ORDER BY seq", (after,)
        )
        return [Event(*row) for row in rows.fetchall()]

    def check_chain(self) -> None:
        """Hold that no event was changed, removed or put in between.

        Raises:
            DataError: naming the first that does not fit.
        """
        before = START
        for number, event in enumerate(self.events(), 1):
            if event.seq != number or event.hash != _hash(before, event.at, event.kind, event.body):
                raise DataError(
                    f"event {event.seq} does not follow from the one before; the file was changed"
                )
            before = event.hash

    def _append(self, kind: str, body: object) -> int:
        row = self._db.execute("SELECT seq, hash FROM event ORDER BY seq DESC LIMIT 1").fetchone()
        number, before = (1, START) if row is None else (int(row[0]) + 1, str(row[1]))
        at, text = self._now(), canonical_json(body).decode()
        self._db.execute(
            "INSERT INTO event VALUES (?, ?, ?, ?, ?)",
            (number, at, kind, text, _hash(before, at, kind, text)),
        )
        return number

    def _write(self, work: Callable[[], R]) -> R:
        """Do the work in one transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            found = work()
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        return found


def _hash(before: str, at: str, kind: str, body: str) -> str:
    return hashlib.sha256("\n".join((before, at, kind, body)).encode()).hexdigest()
