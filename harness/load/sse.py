"""Server-sent events from a byte stream, however the network cuts it.

Only what completion servers use: `data:` fields, comments, blank lines as terminators. Lines end in
LF or CRLF. Nothing is decoded before a line is whole, so a cut inside a character does no harm.
"""

from __future__ import annotations

from harness.errors import BackendError

MAX_EVENT_BYTES = 8 * 1024 * 1024  # a server that never ends a line must not fill the memory


class EventParser:
    """Feed it bytes; it gives the data of each completed event."""

    def __init__(self) -> None:
        """Start at the beginning of a stream."""
        self._rest = b""
        self._data: list[bytes] = []
        self._held = 0  # bytes of the lines of `_data`, their names included: an empty line takes room, too

    def feed(self, received: bytes) -> list[bytes]:
        """Take bytes from the network and return the data of every event they complete.

        Raises:
            BackendError: an event grows beyond `MAX_EVENT_BYTES`.
        """
        events: list[bytes] = []
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            text = line.removesuffix(b"\r")
            if not text:
                events.extend(self._take())
            elif text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" "))
                self._held += len(line)
        if len(self._rest) + self._held > MAX_EVENT_BYTES:
            raise BackendError(f"the server sent an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def pending(self) -> bool:
        """Whether the stream ended inside an event: what it held is lost."""
        return bool(self._rest.strip() or self._data)

    def _take(self) -> list[bytes]:
        if not self._data:
            return []
        event, self._data, self._held = b"\n".join(self._data), [], 0
        return [event]
