"""What was asked and answered, one file of JSON lines a scope; also what a resumed explorer is answered from.

The key is in no line: it is not in the body of a request, and is cut out of whatever the API says.

History: transcript version 1 (0.1.0) first version.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from pathlib import Path
from typing import Any, Literal

from agent_loop.gateway.prices import Usage
from harness.codec import Record, canonical_json
from harness.storage import append_lines, cut_torn_tail, read_lines

REDACTED = "[key]"


class Exchange(Record, frozen=True):
    """One request as the explorer sent it, and what it was answered."""

    at: str  # ISO 8601, UTC
    scope: str
    request: dict[str, Any]
    request_sha256: str  # of its canonical JSON
    status: int  # HTTP; 0 if nothing came
    complete: bool  # the answer is whole and may be given again
    stream: bool
    response: str  # raw: a JSON message, or server-sent events
    version: Literal[1] = 1
    request_id: str | None = None  # of the API
    usage: Usage | None = None  # None: not billed
    dollars: float = 0.0
    attempts: int = 1  # sent to the API so often
    replayed: bool = False  # answered from an earlier life, at no cost


class Transcripts:
    """Append-only files in a folder; used by one thread."""

    def __init__(self, folder: Path, key: str) -> None:
        """Read what earlier lives were answered.

        Args:
            folder: of the transcripts.
            key: what must never be written.

        Raises:
            DataError: a file is damaged before its last line.
        """
        self._folder = folder
        self._key = key
        self._known: dict[tuple[str, str], deque[Exchange]] = defaultdict(deque)
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.rglob("*.jsonl")):
            self._read(path)

    def earlier(self, scope: str, digest: str) -> Exchange | None:
        """The answer of an earlier life to the same request of the same scope; each is given once."""
        known = self._known.get((scope, digest))
        return known.popleft() if known else None

    def write(self, exchange: Exchange) -> None:
        """Append an exchange.

        Raises:
            InvalidRun: the disk is full.
        """
        path = self._folder / f"{exchange.scope}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        append_lines(path, [self._redacted(exchange)])

    def _redacted(self, exchange: Exchange) -> Any:
        text = canonical_json(exchange).decode()
        return json.loads(text.replace(self._key, REDACTED)) if self._key in text else exchange

    def _read(self, path: Path) -> None:
        cut_torn_tail(path)
        for one in read_lines(path, Exchange):
            if one.complete and not one.replayed:
                self._known[one.scope, one.request_sha256].append(one)
