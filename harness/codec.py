"""Frozen typed records: strict decoding, canonical JSON, published JSON Schema.

Every file the harness writes is made of `Record` subclasses. Unknown or mistyped fields are
refused with the path of the field; JSON is canonical (keys sorted, UTF-8, no spaces, no NaN).
"""

from __future__ import annotations

import difflib
import hashlib
import math
import tomllib
from typing import Any, TypeVar

import msgspec

from harness.errors import DataError, UsageError

R = TypeVar("R")


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every record on disk."""


def canonical_json(value: object) -> bytes:
    """Canonical bytes of a record: sorted keys, no white space, non-finite floats refused."""
    plain = msgspec.to_builtins(value, str_keys=True)
    _refuse_unwritable(plain, "$")
    return msgspec.json.encode(plain, order="sorted")


def digest(value: object) -> str:
    """sha256 (hex) of the canonical JSON of a record, without the fields that hold their default.

    So a later version may add fields with defaults, and what was written before keeps its digest.
    """
    return hashlib.sha256(canonical_json(_said(value))).hexdigest()


def from_json(data: bytes | str, kind: type[R], where: str) -> R:
    """Decode one JSON document.

    Raises:
        DataError: naming `where` and the path of the field that does not fit.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # UTF-8, half surrogates, depth
        raise DataError(f"{where}: {error}") from None


def from_toml(text: str, kind: type[R], where: str) -> R:
    """Decode one TOML document written by a person.

    Raises:
        UsageError: naming `where` and the field, with the known fields when one is misspelt.
    """
    try:
        plain = tomllib.loads(text)
        _refuse_unwritable(plain, "$")
    except RecursionError:
        raise UsageError(f"{where}: not valid TOML: it is nested too deeply") from None
    except ValueError as error:  # a TOMLDecodeError, or a number that no record holds
        raise UsageError(f"{where}: not valid TOML: {error}") from None
    return from_plain(plain, kind, where)


def from_plain(plain: object, kind: type[R], where: str) -> R:
    """Convert plain dicts and lists to a record, strictly.

    Raises:
        UsageError: naming `where` and the field.
    """
    try:
        return msgspec.convert(plain, type=kind, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}{_suggestion(kind, str(error))}") from None


def json_schema(kind: type[Any]) -> dict[str, Any]:
    """JSON Schema (2020-12) of a record type."""
    return msgspec.json.schema(kind)


def _said(value: object) -> object:
    """A record as plain data, with only the fields that differ from their default."""
    if isinstance(value, msgspec.Struct):
        return {
            field.encode_name: _said(getattr(value, field.name))
            for field in msgspec.structs.fields(value)
            if getattr(value, field.name) != _default(field)
        }
    if isinstance(value, list | tuple):
        return [_said(item) for item in value]
    if isinstance(value, dict):
        return {key: _said(item) for key, item in value.items()}
    return value


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _refuse_unwritable(value: object, path: str) -> None:
    """Numbers that canonical JSON does not hold."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path}: {value} has no place in a record; use None")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError(f"{path}: a whole number has at most 64 bits")
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_unwritable(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_unwritable(item, f"{path}[{index}]")


def _suggestion(kind: type[Any], message: str) -> str:
    """For an unknown field, the known one that is closest."""
    if "unknown field" not in message:
        return ""
    names = {
        field.encode_name for struct in _structs(kind, set()) for field in msgspec.structs.fields(struct)
    }
    close = difflib.get_close_matches(message.split("`")[1], names, n=1)
    return f"; did you mean `{close[0]}`?" if close else "; `specpilot-harness schema` prints the known ones"


def _structs(kind: Any, seen: set[Any]) -> set[Any]:
    """Every record type reachable from `kind`."""
    if kind in seen:
        return seen
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        seen.add(kind)
        for field in msgspec.structs.fields(kind):
            _structs(field.type, seen)
    for argument in getattr(kind, "__args__", ()):
        _structs(argument, seen)
    return seen
