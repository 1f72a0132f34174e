"""The memory's SQLite file: bodies are immutable, evidence is only added, nothing is deleted."""

from __future__ import annotations

import datetime
import sqlite3
from pathlib import Path

from agent_loop.memory.records import Evidence, Mechanism, State
from agent_loop.memory.retrieval import Known, key_of
from agent_loop.sqlite import open_file
from harness.codec import canonical_json, from_json
from harness.errors import InvalidRun, UsageError

VERSION = 1
SCHEMA = """
CREATE TABLE mechanism (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, body TEXT NOT NULL, retired TEXT
) STRICT;
CREATE TABLE evidence (
    key TEXT PRIMARY KEY, mechanism TEXT NOT NULL REFERENCES mechanism, body TEXT NOT NULL
) STRICT;
CREATE TABLE conflict (one TEXT NOT NULL, other TEXT NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (one, other))
STRICT;
"""


class Memory:
    """All mechanism records."""

    def __init__(self, path: Path) -> None:
        """Open, or create.

        Raises:
            InvalidRun: it cannot be opened.
            DataError: it is of another version.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = open_file(path, SCHEMA, VERSION)
        except (sqlite3.Error, OSError) as error:
            raise InvalidRun(f"cannot open {path}: {error}; choose another --memory") from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add(self, mechanism: Mechanism, row: Evidence) -> None:
        """Add evidence, and its record where it is new; the same row twice is one."""
        self._db.execute("BEGIN IMMEDIATE")
        body = canonical_json(mechanism).decode()
        self._db.execute(
            "INSERT OR IGNORE INTO mechanism VALUES (?, ?, ?, NULL)", (mechanism.id, mechanism.name, body)
        )
        self._db.execute(
            "INSERT OR IGNORE INTO evidence VALUES (?, ?, ?)",
            (key_of(row), mechanism.id, canonical_json(row).decode()),
        )
        self._db.execute("COMMIT")

    def retire(self, mechanism: str, reason: str) -> None:
        """Keep a record out of every answer: stock has it, or what found it had a hole.

        Raises:
            UsageError: there is no such record.
        """
        done = self._db.execute("UPDATE mechanism SET retired = ? WHERE id = ?", (reason, mechanism))
        if not done.rowcount:
            raise UsageError(f"the memory holds no record {mechanism}; `loop memory` lists them")

    def conflict(self, one: str, other: str, reason: str) -> None:
        """Note that two records did not go together."""
        first, second = sorted((one, other))
        self._db.execute("INSERT OR IGNORE INTO conflict VALUES (?, ?, ?)", (first, second, reason))

    def conflicts(self) -> list[tuple[str, str]]:
        """All pairs that did not go together."""
        return [(str(a), str(b)) for a, b in self._db.execute("SELECT one, other FROM conflict")]

    def known(self, *, retired: bool = False) -> list[Known]:
        """Records with their evidence, oldest first."""
        where = "" if retired else "WHERE retired IS NULL"
        rows = self._db.execute(f"SELECT id, body, retired FROM mechanism {where} ORDER BY rowid").fetchall()  # noqa: S608
        found = []
        for name, body, reason in rows:
            evidence = self._db.execute(
                "SELECT body FROM evidence WHERE mechanism = ? ORDER BY rowid", (name,)
            ).fetchall()
            found.append(
                Known(
                    from_json(body, Mechanism, f"mechanism {name}"),
                    tuple(from_json(row[0], Evidence, f"evidence of {name}") for row in evidence),
                    reason,
                )
            )
        return found


def state_of(known: Known) -> State:
    """Where a record stands: a person has retired it, or its evidence says."""
    if known.retired is not None:
        return "retired"
    accepted = {row.deployment for row in known.evidence if row.positive}
    refused = any(not row.positive for row in known.evidence)
    if not accepted:
        return "candidate"
    if refused:
        return "contested"
    return "confirmed-many" if len(accepted) > 1 else "confirmed"


def ages(known: list[Known], now: datetime.datetime) -> dict[str, float]:
    """Age in days of every evidence row."""
    return {
        key_of(row): (now - datetime.datetime.fromisoformat(row.date)).total_seconds() / 86400.0
        for one in known
        for row in one.evidence
    }
