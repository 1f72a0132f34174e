"""From rows to prompts: the prompt formats that published speculative-decoding work uses.

The wording is that of the field, byte for byte, so that acceptance lengths can be compared; chat
template and special tokens are the harness's business. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harness.codec import canonical_json
from harness.errors import DataError
from harness.records import Prompt
from sealed_evals.catalogue import FormatName, RowLayout
from sealed_evals.reader import Row

_BOXED = "{}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
_PYTHON_FENCE = (
    "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{}\n```"
)


class _NoPromptError(Exception):
    """A field does not hold a prompt of the wanted form."""


def extract(rows: Sequence[Row], layout: RowLayout, *, name: str, category: str, where: str) -> list[Prompt]:
    """Formatted prompts of the selected rows, in file order.

    Args:
        rows: rows of the whole file.
        layout: how they are read.
        name: of the set, which begins every prompt id.
        category: of rows that name none themselves.
        where: name of the file, for the error.

    Raises:
        DataError: naming the row, when it has no usable prompt, key or category, or when two rows
            share a key or nothing is selected.
    """
    seen: dict[str, int] = {}
    prompts: list[Prompt] = []
    for row in select(rows, layout, where):
        key = _key(row, layout, len(prompts), where)
        if key in seen:
            raise DataError(
                f"{where} row {row.number}: shares the key {key!r} in {layout.key!r} with row {seen[key]}"
            )
        seen[key] = row.number
        prompt = Prompt(
            prompt_id=f"{name}/{key}",
            set_name=name,
            category=_category(row, layout, category, where),
            turns=turns_of(row, layout, where),
            row_sha256=row.sha256,
        )
        prompts.append(prompt)
    if not prompts:
        raise DataError(f"{where}: holds no row of the set {name!r}; give a file with at least one")
    return prompts


def select(rows: Iterable[Row], layout: RowLayout, where: str) -> list[Row]:
    """Rows of the file that belong to the set.

    Raises:
        DataError: naming the first row whose selecting field is not an integer.
    """
    chosen = layout.select
    if chosen is None:
        return list(rows)
    kept: list[Row] = []
    for row in rows:
        value = row.value.get(chosen.field)
        if not isinstance(value, int) or isinstance(value, bool):
            raise DataError(f"{where} row {row.number}: no integer field {chosen.field!r}{_has(row)}")
        if chosen.low <= value <= chosen.high:
            kept.append(row)
    return kept


def turns_of(row: Row, layout: RowLayout, where: str) -> tuple[str, ...]:
    """User turns of one row.

    Raises:
        DataError: the field is missing or holds no prompt; the message names row and fields.
    """
    if layout.field not in row.value:
        missing = f"no field {layout.field!r}{_has(row)}; name the one that holds the prompt"
        raise DataError(f"{where} row {row.number}: {missing}")
    try:
        turns = _FORMATS[layout.format](row.value[layout.field])
        if not turns or not all(turn.strip() for turn in turns):
            raise _NoPromptError("holds no text")
    except _NoPromptError as error:
        raise DataError(f"{where} row {row.number}: field {layout.field!r} {error}{_has(row)}") from None
    return turns


def prompts_digest(prompts: Iterable[Prompt]) -> str:
    """sha256 (hex) of the canonical JSON of all turns, in order: what the target will be asked."""
    return hashlib.sha256(canonical_json([prompt.turns for prompt in prompts])).hexdigest()


def boxed(problem: str) -> str:
    """A problem with the field's request for a boxed answer."""
    return _BOXED.format(problem)


def python_fence(stub: str) -> str:
    """A function to complete, with the field's request for a solution."""
    return _PYTHON_FENCE.format(stub)


def _plain(value: Any) -> tuple[str, ...]:
    return (_string(value),)


def _boxed(value: Any) -> tuple[str, ...]:
    return (boxed(_string(value)),)


def _python_fence(value: Any) -> tuple[str, ...]:
    return (python_fence(_string(value)),)


def _turns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _NoPromptError(f"is {_kind(value)}, wanted a list of turns")
    return tuple(_string(turn) for turn in value)


def _own(value: Any) -> tuple[str, ...]:
    """A user's field: a string, a list of turns, or OpenAI-style messages (user turns count)."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise _NoPromptError(f"is {_kind(value)}, wanted a string, a list of turns or a list of messages")
    if not any(isinstance(item, dict) for item in value):
        return _turns(value)
    turns: list[str] = []
    for message in value:
        if not isinstance(message, dict) or "role" not in message or "content" not in message:
            raise _NoPromptError("mixes turns and messages, or a message lacks `role` or `content`")
        if message["role"] == "user":
            turns.append(_string(message["content"]))
    if not turns:
        raise _NoPromptError("holds no message with the role 'user'")
    return tuple(turns)


_FORMATS: dict[FormatName, Callable[[Any], tuple[str, ...]]] = {
    "plain": _plain,
    "boxed": _boxed,
    "python-fence": _python_fence,
    "turns": _turns,
    "own": _own,
}


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _NoPromptError(f"holds {_kind(value)} where a string is wanted")
    return value


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "an object" if isinstance(value, dict) else "a list")


def _has(row: Row) -> str:
    return f" (it has: {', '.join(row.value) or 'nothing'})"


def _key(row: Row, layout: RowLayout, index: int, where: str) -> str:
    if layout.key is None:
        return str(layout.first_key + index)
    key = row.value.get(layout.key)
    if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
        raise DataError(f"{where} row {row.number}: no string or integer key in {layout.key!r}{_has(row)}")
    return str(key)


def _category(row: Row, layout: RowLayout, default: str, where: str) -> str:
    if layout.category is None or layout.category not in row.value:
        return default
    category = row.value[layout.category]
    if not isinstance(category, str) or not category.strip():
        raise DataError(f"{where} row {row.number}: field {layout.category!r} is no category; give a word")
    return category
