"""One shape for the results of every tool, and the reading of fields that may be missing or odd."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from harness.codec import Record
from harness.errors import DataError

Tool = Literal["vllm-bench", "sglang-bench", "guidellm", "aiperf", "spec-bench"]
LARGEST = 10**21  # of a figure: nanoseconds since 1970 are below it
MAYBE_UNKNOWN = (
    *("tool_version", "model", "engine", "gpu", "dataset", "concurrency", "request_rate", "temperature"),
    *("ignore_eos", "completed", "failed", "duration_s", "output_tokens", "acceptance_length"),
)


class ImportedRequest(Record, frozen=True):
    """One request that succeeded."""

    key: str | None  # the same in two files for the same prompt; None: cannot be paired
    category: str | None = None
    output_tokens: int | None = None
    seconds: float | None = None  # whole request
    ttft_seconds: float | None = None
    texts: tuple[str, ...] | None = None  # what was answered, turn by turn
    accept_lengths: tuple[float, ...] = ()  # tokens a verify step, as the tool counts them


class Imported(Record, frozen=True):
    """What a file says. None is unknown, never a default."""

    tool: Tool
    source: str  # path of the file
    tool_version: str | None = None
    model: str | None = None
    engine: str | None = None
    gpu: str | None = None
    dataset: str | None = None
    concurrency: int | None = None
    request_rate: float | None = None  # requests a second; None also where all are sent at once
    temperature: float | None = None
    ignore_eos: bool | None = None
    completed: int | None = None
    failed: int | None = None
    duration_s: float | None = None
    output_tokens: int | None = None
    acceptance_length: float | None = None
    acceptance_is: str | None = None  # how the tool defines it
    requests: tuple[ImportedRequest, ...] = ()
    cautions: tuple[str, ...] = ()  # known traps of the tool that this file may have fallen into

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of what the file does not say."""
        return tuple(name for name in MAYBE_UNKNOWN if getattr(self, name) is None)

    @property
    def throughput(self) -> float | None:
        """Output tokens a second over the whole duration."""
        if self.output_tokens is None or not self.duration_s:
            return None
        return self.output_tokens / self.duration_s


class Source:
    """A file being read: every fault names it and the field."""

    def __init__(self, path: Path) -> None:
        """Remember where it lies."""
        self.path = path

    def documents(self) -> list[dict[str, Any]]:
        """One JSON object, or one a line.

        Raises:
            DataError: the file cannot be read, or holds something else.
        """
        try:
            text = self.path.read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise DataError(f"cannot read {self.path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path}: not UTF-8 text: {error.reason}") from None
        try:
            found = [json.loads(text)]
        except (ValueError, RecursionError):
            found = [
                self._line(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()
            ]
        found = [found] if isinstance(found, dict) else found
        if not found or not all(isinstance(one, dict) for one in found):
            raise DataError(f"{self.path}: holds no JSON object")
        return found

    def number(self, document: Mapping[str, Any], field: str) -> float | None:
        """A number of 0 or more; None where it is missing, null, or infinite (which tools write for "off").

        Raises:
            DataError: it is something else.
        """
        value = document.get(field)
        if isinstance(value, str) and value.strip().lower() in ("inf", "infinity", "nan", ""):
            return None
        if value is None:
            return None
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return self._figure(value, field)

    def whole(self, document: Mapping[str, Any], field: str) -> int | None:
        """A whole number, or None; see `number`."""
        value = self.number(document, field)
        return None if value is None else round(value)

    def series(self, document: Mapping[str, Any], field: str, length: int | None = None) -> list[Any] | None:
        """A list; None where the field is missing.

        Raises:
            DataError: it is no list, or not of this length.
        """
        value = document.get(field)
        if value is None:
            return None
        if not isinstance(value, list) or (length is not None and len(value) != length):
            wanted = "a list" if length is None else f"a list of {length}, one a request"
            raise DataError(f"{self.path}: `{field}` must be {wanted}")
        return value

    def numbers(
        self, document: Mapping[str, Any], field: str, length: int | None = None
    ) -> list[float] | None:
        """A list of numbers of 0 or more; None where the field is missing.

        Raises:
            DataError: it is no list, not of this length, or holds something else.
        """
        values = self.series(document, field, length)
        return None if values is None else [self._figure(value, field) for value in values]

    def _figure(self, value: object, field: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
            shown = (
                f"{value!r:.60}" if not isinstance(value, int) or abs(value) <= LARGEST else "far too large"
            )
            raise DataError(f"{self.path}: `{field}` must be a number of 0 or more, it is {shown}")
        return float(value)

    def _line(self, number: int, line: str) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.path} line {number}: no JSON: {error}") from None


def words(value: object) -> str | None:
    """Text that says something, or None; half surrogates, which no file can hold, become question marks."""
    return whole_text(value) if value not in (None, "", "none", "None") else None


def whole_text(value: object) -> str:
    """Any value as text that can be written."""
    return str(value).encode("utf-8", errors="replace").decode()


def section(document: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A nested object; empty where any part of the way is missing."""
    inner: Any = document
    for name in names:
        inner = inner.get(name) if isinstance(inner, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}
