"""Byte-exact reader of JSON Lines, JSON arrays and their gzip files.

One scan finds every fault of a file; strict reading refuses at the first one. Rows are split on
the byte 0x0A only and no text is ever stripped or normalised: a prompt reaches the target as its
authors wrote it.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import json
import math
import zlib
from typing import Any, Literal, NamedTuple

from harness.errors import DataError

MAX_BYTES = 1 << 30  # of an unpacked file; a gzip bomb is refused, not unpacked
_GZIP_MAGIC = b"\x1f\x8b"
_JSON_SPACE = " \t\n\r"

FaultRule = Literal[
    "bom",
    "blank-line",
    "crlf-line-end",
    "duplicate-key",
    "empty-file",
    "invalid-json",
    "invalid-utf8",
    "lone-surrogate",
    "non-finite",
    "not-an-object",
]


class Row(NamedTuple):
    """One row of a file, with the bytes it was read from."""

    number: int  # counted from 1: the line, or the element of a JSON array
    raw: bytes  # as in the file, without the line end
    value: dict[str, Any]

    @property
    def sha256(self) -> str:
        """sha256 (hex) of the raw bytes."""
        return hashlib.sha256(self.raw).hexdigest()


class Fault(NamedTuple):
    """Why a file, or one row of it, is not well formed."""

    rule: FaultRule
    number: int | None  # of the row; None: the file as a whole
    message: str


class Scan(NamedTuple):
    """Everything found in a file: the rows that can be read, and all faults in file order."""

    unit: Literal["line", "row"]  # what a row number counts
    rows: tuple[Row, ...]
    faults: tuple[Fault, ...]


def read_rows(data: bytes, where: str) -> tuple[Row, ...]:
    """Rows of a well-formed file.

    Args:
        data: content of the file, gzip or plain.
        where: name of the file, for the error.

    Raises:
        DataError: naming file, line and reason of the first fault.
    """
    found = scan(unpack(data, where))
    if found.faults:
        rule, number, message = found.faults[0]
        place = where if number is None else f"{where} {found.unit} {number}"
        raise DataError(f"{place}: {message} ({rule})")
    return found.rows


def unpack(data: bytes, where: str) -> bytes:
    """Content of a gzip file; any other content comes back as it is.

    Raises:
        DataError: the gzip stream is damaged or unpacks to more than `MAX_BYTES`.
    """
    if not data.startswith(_GZIP_MAGIC):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            plain = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{where}: damaged gzip file: {error}; get the file again") from None
    if len(plain) > MAX_BYTES:
        raise DataError(f"{where}: unpacks to more than {MAX_BYTES} bytes; split the file")
    return plain


def scan(data: bytes) -> Scan:
    """Read as much of a plain file as can be read and collect every fault on the way."""
    faults: list[Fault] = []
    if data.startswith(codecs.BOM_UTF8):
        faults.append(Fault("bom", 1, "starts with a byte order mark; save the file without it"))
        data = data[len(codecs.BOM_UTF8) :]
    found = _scan_array(data) if data.lstrip(b" \t\r\n").startswith(b"[") else _scan_lines(data)
    faults += found.faults
    if not found.rows and not faults:
        faults.append(Fault("empty-file", None, "holds no row; give a file with at least one"))
    return found._replace(faults=tuple(faults))


def _scan_lines(data: bytes) -> Scan:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    rows: list[Row] = []
    faults: list[Fault] = []
    for number, raw in enumerate(lines, 1):
        if raw.endswith(b"\r"):
            faults.append(Fault("crlf-line-end", number, "ends in CR LF; save with LF line ends"))
        if not raw.strip():
            faults.append(Fault("blank-line", number, "is blank; remove the line"))
            continue
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            faults.append(_not_utf8(error, number))
            continue
        value, _, found = _parse(text, 0, number)
        faults += found
        if value is not None:
            rows.append(Row(number, raw, value))
    return Scan("line", tuple(rows), tuple(faults))


def _scan_array(data: bytes) -> Scan:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return Scan("row", (), (_not_utf8(error, None),))
    rows: list[Row] = []
    faults: list[Fault] = []
    if "\r\n" in text:  # a carriage return inside a JSON string is escaped, so this is a line end
        faults.append(Fault("crlf-line-end", None, "has CR LF line ends; save with LF line ends"))
    at = _skip_space(text, text.index("[") + 1)
    number = 0
    while text[at : at + 1] != "]" or number:  # an empty array has no element before its bracket
        number += 1
        value, end, found = _parse(text, at, number, whole=False)
        faults += found
        if value is not None:
            rows.append(Row(number, text[at:end].encode(), value))
        if end is None:
            return Scan("row", tuple(rows), tuple(faults))
        at = _skip_space(text, end)
        if text[at : at + 1] != ",":
            break
        at = _skip_space(text, at + 1)
    if text[at : at + 1] != "]" or _skip_space(text, at + 1) != len(text):
        message = f"the JSON array does not end after its row {number}; get the file again"
        faults.append(Fault("invalid-json", None, message))
    return Scan("row", tuple(rows), tuple(faults))


def _parse(
    text: str, start: int, number: int, *, whole: bool = True
) -> tuple[dict[str, Any] | None, int | None, list[Fault]]:
    """One JSON object from `start`: its value, where it ends, and its faults.

    A value of None is a row that cannot be used; an end of None is text that is not JSON, after
    which nothing can be found. `whole` asks that nothing follow the value.
    """
    faults: list[Fault] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(items)
        if len(value) != len(items):
            keys = [key for key, _ in items]
            double = next(key for key in keys if keys.count(key) > 1)
            faults.append(Fault("duplicate-key", number, f"holds the key {double!r} twice; keep one"))
        return value

    def constant(name: str) -> float:
        faults.append(Fault("non-finite", number, f"holds {name}, which JSON does not know; use null"))
        return math.nan

    def decimal(digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            constant(digits)
        return value

    decoder = json.JSONDecoder(object_pairs_hook=pairs, parse_constant=constant, parse_float=decimal)
    try:
        value, end = decoder.raw_decode(text, _skip_space(text, start))
        surrogate = _has_lone_surrogate(value)
    except RecursionError:
        return None, None, [Fault("invalid-json", number, "is nested too deeply; flatten the row")]
    except ValueError as error:  # JSONDecodeError, and numbers with thousands of digits
        return None, None, [*faults, Fault("invalid-json", number, f"is not valid JSON: {error}")]
    if whole and _skip_space(text, end) != len(text):
        faults.append(Fault("invalid-json", number, "holds more than one JSON value; give each its line"))
        return None, end, faults
    if surrogate:
        message = "holds half of a surrogate pair, which is no character; mend the text"
        faults.append(Fault("lone-surrogate", number, message))
    if not isinstance(value, dict):
        message = f"holds a JSON {type(value).__name__} where an object is wanted"
        faults.append(Fault("not-an-object", number, message))
        return None, end, faults
    return value, end, faults


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in _JSON_SPACE:
        at += 1
    return at


def _has_lone_surrogate(value: object) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return any(_has_lone_surrogate(key) or _has_lone_surrogate(item) for key, item in value.items())
    if isinstance(value, list):
        return any(_has_lone_surrogate(item) for item in value)
    return False


def _not_utf8(error: UnicodeDecodeError, number: int | None) -> Fault:
    message = f"is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}; save as UTF-8"
    return Fault("invalid-utf8", number, message)
