"""Files of a run: atomic writes, JSON lines, a lock on the run folder.

A killed run leaves nothing or a valid partial: every file is written to a temporary name in the
same folder, synced and renamed; JSON lines are appended whole and a torn last line is dropped.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from harness.codec import canonical_json, from_json
from harness.errors import DataError, InvalidRun
from harness.packed import stored_bytes

R = TypeVar("R")


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a file so that it is either whole or as it was.

    Raises:
        InvalidRun: the folder cannot be written (read-only, full); the target is untouched.
    """
    payload = data.encode() if isinstance(data, str) else data
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise InvalidRun(
            f"cannot write {path}: {error.strerror}; free space or choose another --out"
        ) from None


def write_lines(path: Path, records: Iterable[object]) -> None:
    """Write records as JSON lines, atomically."""
    write_atomic(path, b"".join(canonical_json(record) + b"\n" for record in records))


def append_lines(path: Path, records: Iterable[object]) -> None:
    """Append records as JSON lines in one write, synced.

    Raises:
        InvalidRun: the disk is full or the folder read-only.
    """
    payload = b"".join(canonical_json(record) + b"\n" for record in records)
    try:
        with path.open("ab") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InvalidRun(
            f"cannot append to {path}: {error.strerror}; free space, then run --resume"
        ) from None


def read_lines(path: Path, kind: type[R], *, drop_torn_tail: bool = False) -> Iterator[R]:
    """Read JSON lines, split on the byte 0x0A only.

    Args:
        path: the file, or the name without `.xz` of a compressed one.
        kind: record type of each line.
        drop_torn_tail: ignore a last line without its line end (a killed writer's).

    Raises:
        DataError: naming file, line and field.
    """
    try:
        data = stored_bytes(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    lines = data.split(b"\n")
    tail = lines.pop()
    if tail and not drop_torn_tail:
        lines.append(tail)
    for number, line in enumerate(lines, 1):
        yield from_json(line, kind, f"{path} line {number}")


def cut_torn_tail(path: Path) -> None:
    """Cut off a last line without its line end (a killed writer's), so that the next one begins anew."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run folder for this process; a second run in it is refused.

    Raises:
        InvalidRun: another process holds it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / ".lock").open("a+")
    except OSError as error:
        raise InvalidRun(f"cannot write in {folder}: {error.strerror}; choose another --out") from None
    with handle:
        hold(handle, f"{folder} is in use by another run; wait for it or choose another --out")
        yield


def hold(handle: IO[Any], taken: str) -> None:
    """Lock an open file for this process, until it is closed.

    Args:
        handle: the file.
        taken: what to say if another process holds it.

    Raises:
        InvalidRun: another process holds it.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InvalidRun(taken) from None


def file_digest(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
