"""Valid documents made wrong: values replaced, left out, added, nested, and bytes changed at random."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

DEPTH = 2_500  # beyond what the readers follow, and short enough to be shown
# Values that a reader of JSON or TOML is seldom prepared for.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 2**64, 10**40),
    *(0.0, -0.5, 1e-320, 1e308, 2.5, float("inf"), float("nan")),
    *(
        "",
        " ",
        ".",
        "..",
        "../../x",
        "/etc/passwd",
        "a/b",
        "\x00",
        "\ud800",
        "\u2028",
        "<script>",
        "x" * 5000,
    ),
    *([], {}, [[]], [None], [{}], {"": None}, {"a": {"b": []}}, [1, "a"], ["../x"], "nan", "Infinity"),
)


def odd_values() -> SearchStrategy[Any]:
    """One value that does not belong."""
    return st.sampled_from(ODD).map(copy.deepcopy) | st.text(max_size=20) | st.integers() | st.floats()


def paths(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside a document."""
    if at:
        yield at
    if isinstance(document, dict):
        for key in document:
            yield from paths(document[key], (*at, key))
    elif isinstance(document, list):
        for index in range(min(len(document), 4)):
            yield from paths(document[index], (*at, index))


@st.composite
def broken(draw: st.DrawFn, valid: Any, most: int = 3) -> Any:
    """A document with one to `most` values replaced, left out or added."""
    found = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, most))):
        ways = list(paths(found))
        if not ways:
            return found
        *above, last = draw(st.sampled_from(ways))
        inner = found
        for step in above:
            inner = inner[step]
        match draw(st.sampled_from(("replace", "replace", "remove", "add", "double"))):
            case "replace":
                inner[last] = draw(odd_values())
            case "remove":
                del inner[last]
            case "add" if isinstance(inner, dict):
                inner[draw(st.text(max_size=8))] = draw(odd_values())
            case "double" if isinstance(inner, list):
                inner.append(inner[last])
            case _:
                inner[last] = [inner[last]]
    return found


def json_text(document: Any) -> str:
    """As a careless program writes it: NaN and half surrogates stay in."""
    return json.dumps(document, ensure_ascii=True)


@st.composite
def scrambled(draw: st.DrawFn, valid: bytes) -> bytes:
    """Bytes of a file, some of them changed, cut, doubled or moved."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(("flip", "cut", "insert", "double", "drop"))):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=12))
            case "double":
                data[at:at] = data[at : at + 16]
            case _:
                del data[at : at + draw(st.integers(1, 8))]
    return bytes(data)


NESTED = (b"[" * DEPTH, b'{"a":' * DEPTH, b"[" * DEPTH + b"]" * DEPTH, b'{"a":' * DEPTH + b"1" + b"}" * DEPTH)
HUGE_NUMBERS = (b"1" + b"0" * 6000, b"-1" + b"0" * 6000, b"1e999999", b"0." + b"1" * 6000)


def hostile_json(valid: Any) -> SearchStrategy[bytes]:
    """Every kind of bad JSON: wrong values, wrong bytes, other documents, nesting, numbers beyond bounds."""
    text = json_text(valid).encode()
    huge = st.sampled_from(HUGE_NUMBERS).map(lambda number: b'{"a":' + number + b"}")
    return (
        broken(valid).map(lambda document: json_text(document).encode())
        | scrambled(text)
        | st.sampled_from(NESTED)
        | huge
        | st.binary(max_size=40)
        | odd_values().map(lambda value: json_text(value).encode())
    )


def toml_value(value: Any) -> str:
    """A value as TOML spells it."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(str(value), ensure_ascii=False)


def toml_text(document: dict[str, Any]) -> str:
    """A document as TOML, tables inline."""
    return "".join(f"{json.dumps(key)} = {toml_value(value)}\n" for key, value in document.items())


def hostile_toml(valid: dict[str, Any]) -> SearchStrategy[bytes]:
    """Every kind of bad TOML."""
    text = toml_text(valid).encode()

    def written(document: Any) -> bytes:
        return toml_text(document).encode("utf-8", "surrogatepass")

    nested = (b"a = " + b"[" * DEPTH, b"a" + b".a" * DEPTH + b" = 1", b"a = " + b"{a = " * DEPTH)
    huge = tuple(b"a = " + number for number in HUGE_NUMBERS)
    return (
        broken(valid).map(written)
        | scrambled(text)
        | st.sampled_from((*nested, *huge))
        | st.binary(max_size=30)
    )
