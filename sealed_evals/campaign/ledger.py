"""The ledger: every opening of a shard, written and synced before it happens.

Each line holds the hash of the line before it, so that a missing, changed or reordered line is
found by anyone; its seal, made with the campaign's secret, says that the controller wrote it. The
head, kept with the key and synced after each line, says how far the ledger must reach: a ledger
that was cut or rolled back is refused. A line that was torn by a crash was not yet relied on by
anything, and is dropped.

History: ledger/1 (0.1.0) first version.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from harness.codec import Record, digest, from_json
from harness.errors import DataError, InvalidRun
from harness.storage import append_lines
from sealed_evals.campaign.crypto import mac
from sealed_evals.campaign.records import Head, Reason

Event = Literal["started", "opened", "decided", "revealed"]
START = "0" * 64  # stands for the line before the first
MEND = "restore ledger.jsonl from a copy, or start a new campaign"


class Entry(Record, frozen=True):
    """One line of ledger.jsonl."""

    schema: Literal["ledger/1"]
    number: int  # counted from 0
    previous: str  # hash of the line before
    at: str  # ISO 8601, UTC
    event: Event
    campaign_sha256: str
    shard: str | None = None  # opened, decided
    candidate: str | None = None  # sha256 of the candidate's record
    accepted: bool | None = None  # decided
    reason: Reason | None = None  # of a rejection
    evidence: str | None = None  # sha256 of the evidence's report.json, where there is one
    hash: str = ""  # sha256 of all above
    seal: str = ""  # HMAC of `hash` under the campaign's ledger key

    @property
    def computed_hash(self) -> str:
        """What `hash` must be."""
        return digest(msgspec.structs.replace(self, hash="", seal=""))


def next_entry(entries: Sequence[Entry], entry: Entry, key: bytes) -> Entry:
    """The entry with number, chain and seal filled in, to follow `entries`."""
    chained = msgspec.structs.replace(
        entry, number=len(entries), previous=entries[-1].hash if entries else START
    )
    chained = msgspec.structs.replace(chained, hash=chained.computed_hash)
    return msgspec.structs.replace(chained, seal=mac(key, chained.hash).hex())


def read_ledger(path: Path) -> tuple[tuple[Entry, ...], int]:
    """Entries of the whole lines, and how many bytes they take; a torn last line is left out.

    Raises:
        DataError: the file cannot be read, or a whole line is no entry.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {MEND}") from None
    *lines, torn = data.split(b"\n")
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(from_json(line, Entry, f"{path} line {number}"))
        except DataError as error:
            raise DataError(f"{error}; {MEND}") from None
    return tuple(entries), len(data) - len(torn)


def check_chain(entries: Sequence[Entry], where: str, key: bytes | None = None) -> None:
    """Hold that no line was changed, left out, put in or moved, and no shard opened twice.

    Args:
        entries: all lines.
        where: name of the file, for the error.
        key: checks the seals, too; None: anyone's check.

    Raises:
        DataError: naming the first line that does not fit.
    """
    previous = START
    opened: set[str | None] = set()
    for number, entry in enumerate(entries):
        place = f"{where} line {number + 1}"
        if entry.number != number or entry.previous != previous:
            raise DataError(f"{place} does not follow the line before it: lines are missing or moved; {MEND}")
        if entry.hash != entry.computed_hash:
            raise DataError(f"{place} was changed: its hash is not its own; {MEND}")
        if key is not None and not hmac.compare_digest(entry.seal, mac(key, entry.hash).hex()):
            raise DataError(f"{place} was not written by this campaign's controller; {MEND}")
        if (entry.event == "started") != (number == 0):
            raise DataError(f"{place}: a ledger has one line 'started', its first; {MEND}")
        if entry.event == "opened" and entry.shard in opened:
            raise DataError(f"{place}: shard {entry.shard} was opened before; its second verdict is void")
        if entry.event == "decided" and entry.shard not in opened:
            raise DataError(f"{place}: shard {entry.shard} was decided but never opened; {MEND}")
        opened |= {entry.shard} if entry.event == "opened" else set()
        previous = entry.hash


def check_head(entries: Sequence[Entry], head: Head, where: str) -> None:
    """Hold that the ledger reaches as far as was written down with the key, and at most one line more.

    Raises:
        DataError: it was cut, rolled back or rewritten.
    """
    if len(entries) < head.lines or entries[head.lines - 1].hash != head.hash:
        raise DataError(
            f"{where} is not the ledger that the controller wrote: it has {len(entries)} lines, and line "
            f"{head.lines} must have the hash {head.hash[:16]}...; {MEND}"
        )
    if len(entries) > head.lines + 1:
        raise DataError(f"{where} has {len(entries)} lines where {head.lines} were written; {MEND}")


def append(path: Path, entry: Entry, size: int) -> int:
    """Add a line after the first `size` bytes and sync file and folder; the new size.

    Whatever stands after `size` is a torn line, which is cut off first.

    Raises:
        InvalidRun: the disk is full or the folder read-only.
    """
    try:
        if path.exists() and path.stat().st_size > size:
            os.truncate(path, size)
        append_lines(path, [entry])
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return path.stat().st_size
    except OSError as error:
        raise InvalidRun(f"cannot write {path}: {error.strerror}; nothing was opened") from None
