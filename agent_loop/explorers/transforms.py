"""Source of a mechanism, changed by parameters: constants, defaults and schedules. Pure, but for `source_of`.

A changed module is a copy with another text at one place; everything around it, comments too, stays. In the
guest's process an entry module has the copies imported in place of the originals, and hands out the backend's
own door: what is measured is the engine with this change, and nothing of it runs outside the sandbox.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from agent_loop.protocols import Edit, Space
from harness.errors import UsageError
from harness.plan import Param

T = TypeVar("T")
ENTRY = "edited_engine"  # module of the patch that is the candidate's backend
_ENTRY_TEXT = '''"""The engine, with copies of some of its modules that were changed."""

import importlib.abc
import importlib.util
import pathlib
import sys

EDITED = {edited}


class Copies(importlib.abc.MetaPathFinder):
    """Finds a changed copy in place of the original."""

    def find_spec(self, name, path, target=None):
        file = EDITED.get(name)
        if file is None:
            return None
        return importlib.util.spec_from_file_location(name, pathlib.Path(__file__).parent / file)


sys.meta_path.insert(0, Copies())

from {module} import {door}  # noqa: E402, F401
'''


def source_of(module: str) -> str:
    """Text of a module that is installed here; nothing of it is run.

    Raises:
        UsageError: there is none.
    """
    try:
        found = importlib.util.find_spec(module)
    except ImportError:
        found = None
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        raise UsageError(f"`edits`: there is no module {module} whose source could be changed")
    return Path(found.origin).read_text(encoding="utf-8")


def patch_of(
    space: Space, values: Mapping[str, Param], source: Callable[[str], str] = source_of
) -> tuple[str, Mapping[str, str]] | None:
    """The backend and the files of a candidate with changed source; None where no edit changes anything.

    Args:
        space: with edits.
        values: of its knobs and edits, by name.
        source: text of a module.

    Raises:
        UsageError: a place to edit is not there.
    """
    chosen: dict[str, list[tuple[Edit, Param]]] = {}
    for edit in space.edits:
        if values[edit.name] != edit.values[0]:
            chosen.setdefault(edit.module, []).append((edit, values[edit.name]))
    if not chosen:
        return None
    module, _, door = space.backend.partition(":")
    names = {name: f"edited_{name.replace('.', '_')}.py" for name in sorted(chosen)}
    entry = _ENTRY_TEXT.format(edited=repr(names), module=module, door=door)
    files = {names[name]: changed(source(name), chosen[name]) for name in names}
    return f"{ENTRY}:{door}", {f"{ENTRY}.py": entry, **files}


def changed(text: str, edits: Sequence[tuple[Edit, Param]]) -> str:
    """A module's text with every edit made.

    Raises:
        UsageError: the place of one is not there, or not once.
    """
    for edit, value in edits:
        tree = ast.parse(text)
        if edit.kind == "schedule":
            new = edit.new.replace("{value}", repr(value))
            try:
                ast.parse(new, mode="eval")
            except SyntaxError:
                raise UsageError(
                    f"`edits`: {edit.name}: `new` gives {new!r}, which is no expression"
                ) from None
            place = _expression(tree, edit)
        else:
            new = repr(value)
            place = _constant(tree, edit) if edit.kind == "constant" else _default(tree, edit)
        text = _spliced(text, place, f"({new})" if edit.kind == "schedule" else new)
    return text


def _constant(tree: ast.Module, edit: Edit) -> ast.expr:
    """The literal that is bound to a name, in the module or in a class."""
    *scope, name = edit.at.split(".")
    found: list[ast.expr] = []
    for node in _body(tree, scope, edit):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(one, ast.Name) and one.id == name for one in targets):
            found.append(node.value)
    return _literal(_only(found, edit), edit)


def _default(tree: ast.Module, edit: Edit) -> ast.expr:
    """The literal default of a parameter."""
    *scope, parameter = edit.at.split(".")
    function = _function(tree, scope, edit)
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    pairs = list(zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults, strict=True))
    named = [(one, given) for one, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    found = [given for one, given in (*pairs, *named) if one.arg == parameter and given is not None]
    return _literal(_only(found, edit), edit)


def _expression(tree: ast.Module, edit: Edit) -> ast.expr:
    """The expression of a function that reads as `old` does."""
    function = _function(tree, edit.at.split("."), edit)
    wanted = ast.dump(ast.parse(edit.old, mode="eval").body)
    found = [one for one in ast.walk(function) if isinstance(one, ast.expr) and ast.dump(one) == wanted]
    return _only(found, edit)


def _body(tree: ast.Module, scope: Sequence[str], edit: Edit) -> list[ast.stmt]:
    body = tree.body
    for name in scope:
        inner = [one for one in body if isinstance(one, ast.ClassDef) and one.name == name]
        body = _only(inner, edit).body
    return body


def _function(tree: ast.Module, path: Sequence[str], edit: Edit) -> ast.FunctionDef:
    body = _body(tree, path[:-1], edit)
    return _only([one for one in body if isinstance(one, ast.FunctionDef) and one.name == path[-1]], edit)


def _literal(found: ast.expr, edit: Edit) -> ast.expr:
    try:
        ast.literal_eval(found)
    except ValueError:
        raise UsageError(f"`edits`: {edit.name}: {edit.at} of {edit.module} is no literal") from None
    return found


def _only(found: Sequence[T], edit: Edit) -> T:
    if len(found) != 1:
        what = f"{edit.old!r} in {edit.at}" if edit.kind == "schedule" else edit.at
        raise UsageError(
            f"`edits`: {edit.name}: {what} occurs {len(found)} times in {edit.module}; it must occur once"
        )
    return found[0]


def _spliced(text: str, place: ast.expr, new: str) -> str:
    """The text with an expression replaced; places are counted in bytes of UTF-8, as `ast` does."""
    lines = text.encode().splitlines(keepends=True)
    if place.end_lineno is None or place.end_col_offset is None:
        raise ValueError("an expression of parsed text has an end")
    start = sum(map(len, lines[: place.lineno - 1])) + place.col_offset
    end = sum(map(len, lines[: place.end_lineno - 1])) + place.end_col_offset
    whole = b"".join(lines)
    return (whole[:start] + new.encode() + whole[end:]).decode()
