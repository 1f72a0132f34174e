"""What a candidate may be at all, before anything of it runs: the arm and the patch, read as text. Pure.

This is triage, not proof: what passes here still runs in a sandbox and is judged by its output alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from agent_loop.records import Candidate, Outcome
from harness.errors import DataError

MAGIC = frozenset({"conftest.py", "sitecustomize.py", "usercustomize.py", "setup.py", "pyproject.toml"})
SUFFIXES = frozenset({".py", ".toml", ".json", ".txt", ".cu", ".cuh", ".h", ".md"})
OUR_PACKAGES = frozenset({"harness", "sealed_evals", "agent_loop", "reference_mechanisms", "tests"})
LARGEST_FILE = 100_000  # bytes
ODD_CALLS = frozenset({"exec", "eval", "compile", "__import__"})
ODD_MODULES = frozenset({"ctypes", "mmap", "pickle", "marshal"})
_FILE = re.compile(r"^\+\+\+ (?:b/)?(?P<path>\S+)\s*$")
_HUNK = re.compile(r"^@@ -0,0 \+1(?:,\d+)? @@")
_BACKEND = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


class Finding(NamedTuple):
    """Why a candidate is refused, or wants a person's eye."""

    outcome: Outcome
    detail: str


def check(  # noqa: PLR0911 - a list of refusals
    candidate: Candidate, trusted: Collection[str], *, read: bool = False
) -> Finding | None:
    """The first thing that is wrong with a candidate; None if nothing is.

    Args:
        candidate: as proposed.
        trusted: backends of the house, which run without a sandbox.
        read: a person has read it, so that nothing in it wants one any more.
    """
    if not _BACKEND.match(candidate.backend):
        return Finding("POLICY", f"`backend` {candidate.backend!r} is not of the form 'module:function'")
    if candidate.patch is None:
        if candidate.backend not in trusted:
            return Finding("POLICY", f"`backend` {candidate.backend!r} is not one of this campaign's")
        return None
    try:
        files = patch_files(candidate.patch)
    except DataError as error:
        return Finding("POLICY", str(error))
    for path, text in files.items():
        found = _check_file(path, text, read=read)
        if found is not None:
            return found
    module = candidate.backend.partition(":")[0].replace(".", "/")
    if f"{module}.py" not in files and f"{module}/__init__.py" not in files:
        return Finding("POLICY", f"`backend` {candidate.backend!r} is in no file of the patch")
    return None


def patch_files(patch: str) -> Mapping[str, str]:
    """Texts of the files that a patch makes, by path.

    Raises:
        DataError: it does anything but add regular files.
    """
    files: dict[str, list[str]] = {}
    current: list[str] | None = None
    for number, line in enumerate(patch.splitlines(), 1):
        named = _FILE.match(line)
        if named and current is None:
            current = files.setdefault(named["path"], [])
        elif line.startswith("--- "):
            if line.split()[1] != "/dev/null":
                raise DataError(f"patch line {number}: only new files may be added, got {line!r}")
            current = None
        elif current is not None and line.startswith("+"):
            current.append(line[1:])
        elif _HUNK.match(line) or line.startswith(("diff --git ", "index ", "new file mode 100644")):
            current = None if line.startswith("diff --git ") else current
        elif line.strip():
            raise DataError(f"patch line {number}: {line[:60]!r} is not part of a patch that adds text files")
    if not files:
        raise DataError("patch: adds no file")
    return {path: "\n".join(lines) + "\n" for path, lines in files.items()}


def patch_of_files(files: Mapping[str, str]) -> str:
    """A unified diff against an empty folder that makes these files; see `patch_files`."""
    return "".join(_added(path, text) for path, text in files.items())


def _added(path: str, text: str) -> str:
    lines = text.split("\n")[:-1] if text.endswith("\n") else text.split("\n")
    body = "".join(f"+{line}\n" for line in lines)
    return f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n{body}"


def _check_file(path: str, text: str, *, read: bool) -> Finding | None:  # noqa: PLR0911 - a list of refusals
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or any(part.startswith(".") for part in parts):
        return Finding("POLICY", f"{path}: leaves the worktree, or is hidden")
    if parts[-1] in MAGIC or PurePosixPath(path).suffix not in SUFFIXES:
        return Finding("POLICY", f"{path}: such a file may not be added")
    if parts[0].removesuffix(".py") in OUR_PACKAGES:
        return Finding("POLICY", f"{path}: would stand in place of a package of the house")
    if len(text.encode()) > LARGEST_FILE or "\x00" in text:
        return Finding("POLICY", f"{path}: is too large or no text")
    if not path.endswith(".py"):
        return None
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return Finding("POLICY", f"{path}: line {error.lineno}: {error.msg}")
    odd = None if read else _odd(tree)
    return None if odd is None else Finding("NEEDS_HUMAN", f"{path}: {odd}")


def _odd(tree: ast.Module) -> str | None:
    """What hides its meaning from a reader."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ODD_CALLS:
            return f"line {node.lineno} calls {node.func.id}"
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if name.partition(".")[0] in ODD_MODULES:
                return f"imports {name}"
    return None
