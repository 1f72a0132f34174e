"""The SQLite files of the loop: how one is opened or created."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from harness.errors import DataError


def open_file(path: Path, schema: str, version: int) -> sqlite3.Connection:
    """Open, or create; every write is synced, and transactions are the caller's.

    Args:
        path: of the file; its folder is there.
        schema: statements that make the tables of a new file.
        version: of the schema.

    Raises:
        DataError: it is of another version.
        sqlite3.Error: it cannot be opened.
    """
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found == 0:
        db.executescript(f"BEGIN; {schema} PRAGMA user_version = {version}; COMMIT;")
    elif found != version:
        raise DataError(f"{path} has version {found}, this program reads {version}")
    return db
