"""Text of others made fit to be shown: one line, printable, of bounded length. Not yet escaped."""

from __future__ import annotations

LIMIT = 2000  # characters; a server's error page in a reason must not bury the report
NAME_LIMIT = 160  # of an arm, a prompt, a set: they stand in many tables


def plain(value: str, limit: int = LIMIT) -> str:
    """The text on one line; what cannot be printed (controls, surrogates, direction marks) as its code.

    Args:
        value: any text, also hostile.
        limit: characters kept, at least 40; a longer text ends with its length. Twice is as once.
    """
    line = " ".join(value.split())
    shown = "".join(map(_printable, line[: limit + 1]))
    if len(shown) <= limit:
        return shown
    return f"{shown[: limit - 40].rstrip()} ... (cut, {len(value)} characters)"


def name(value: str) -> str:
    """A name as `plain` text, short enough for a cell."""
    return plain(value, NAME_LIMIT)


def shorten(value: str, width: int) -> str:
    """A label of at most `width` characters; the middle goes first, since names differ at their ends."""
    shown = name(value)
    if len(shown) <= width:
        return shown
    tail = (width - 1) // 2
    return f"{shown[: width - 1 - tail]}…{shown[len(shown) - tail :]}"


def told(value: object) -> str:
    """Any JSON value in words: nested facts joined, None as "unknown"."""
    if isinstance(value, dict):
        return ", ".join(f"{name(str(key))} {told(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return "; ".join(map(told, value)) or "none"
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else plain(str(value))


def flat(value: object, prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts as pairs of a spaced name and the value in words, in their own order."""
    if isinstance(value, dict) and value:
        inner = list(value.items())
    elif isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value):
        inner = list(enumerate(value))
    else:
        return [(prefix, told(value))]
    return [pair for key, item in inner for pair in flat(item, f"{prefix} {name(str(key))}".strip())]


def _printable(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()
