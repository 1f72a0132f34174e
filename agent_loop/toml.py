"""Plain data as TOML: the loop hands plans to other processes as the files a person would write. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec


def to_toml(record: object) -> str:
    """A record or mapping as a TOML document; fields that are None are left out.

    Raises:
        ValueError: a value that TOML cannot hold.
    """
    plain = msgspec.to_builtins(record, str_keys=True)
    if not isinstance(plain, dict):
        raise ValueError("a TOML document is a table")  # noqa: TRY004 - a value, as below
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in plain.items() if value is not None)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        text = repr(value)
        return text if any(mark in text for mark in ".en") else f"{text}.0"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inner} }}" if inner else "{}"
    raise ValueError(f"TOML holds no {type(value).__name__}")


def _key(key: str) -> str:
    plain = key.replace("_", "").replace("-", "")
    return key if plain.isascii() and plain.isalnum() else _string(key)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
