"""What a response says it used: a whole message, or a stream of events as it goes by. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from agent_loop.gateway.prices import Usage, usage_of


class StreamReader:
    """Follows server-sent events of one response without holding them up."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._line = b""
        self._usage: dict[str, Any] = {}
        self._delta_bytes = 0
        self._ended = False  # `message_delta` told the last counts
        self.finished = False  # `message_stop` was seen
        self.failed = False  # an `error` event was seen
        self.damaged = False  # an event was not JSON

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line.removeprefix(b"data:").strip())

    def usage(self, most: Usage) -> Usage:
        """What is billed: as told at the end, else what was told before it with the output seen since.

        Args:
            most: of the reservation; stands in for what was never told.
        """
        told = usage_of(self._usage)
        if told is None:
            return most
        if self._ended and not self.damaged:
            return told
        output = max(told.output_tokens, min(self._delta_bytes, most.output_tokens))
        return msgspec.structs.replace(told, output_tokens=output)

    def _event(self, data: bytes) -> None:
        try:
            event = json.loads(data)
            kind = event["type"]
        except (ValueError, KeyError, TypeError):
            self.damaged = True
            return
        if kind == "message_start":
            self._take(event.get("message", {}).get("usage"))
        elif kind == "content_block_delta":
            self._delta_bytes += len(data)
        elif kind == "message_delta":
            self._ended = isinstance(event.get("usage"), dict)
            self._take(event.get("usage"))
        elif kind == "message_stop":
            self.finished = True
        elif kind == "error":
            self.failed = True

    def _take(self, usage: Any) -> None:
        """Counts are cumulative: the last one told stands."""
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}


def message_usage(text: bytes, most: Usage) -> Usage:
    """What a whole message says it used; the reservation if it does not say."""
    try:
        return usage_of(json.loads(text).get("usage")) or most
    except (ValueError, AttributeError):
        return most
