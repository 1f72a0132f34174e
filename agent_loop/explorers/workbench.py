"""The files of one explorer: read, searched and edited inside its worktree only, and told as a patch."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from agent_loop.controller.policy import (
    LARGEST_FILE,
    MAGIC,
    OUR_PACKAGES,
    SUFFIXES,
    patch_files,
    patch_of_files,
)
from harness.errors import DataError, UsageError

MOST_HITS = 50
MOST_FILES = 200


class Workbench:
    """A folder; every path is relative to it, and leads through no link."""

    def __init__(self, root: Path) -> None:
        """Use a folder that exists."""
        self._root = root.resolve(strict=True)

    def clear(self) -> None:
        """Empty it, so that an explorer that is started anew begins where it began."""
        for entry in self._root.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def read(self, path: str) -> str:
        """Text of a file.

        Raises:
            UsageError: it is not there, not text, or not in the worktree.
        """
        place = self._place(path)
        try:
            if not _plain(place):
                raise UsageError(f"{path}: is no regular file of the worktree")
            return place.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise UsageError(f"{path}: cannot be read as a text file") from None

    def search(self, words: str) -> list[str]:
        """Lines that hold a text, as "path:line: text", at most `MOST_HITS`."""
        found: list[str] = []
        for path, text in self.files().items():
            for number, line in enumerate(text.splitlines(), 1):
                if words in line:
                    found.append(f"{path}:{number}: {line[:200]}")
                    if len(found) == MOST_HITS:
                        return found
        return found

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace the only occurrence of a text; an empty `old` makes a new file.

        Raises:
            UsageError: such a file may not be written, or `old` is not there exactly once.
        """
        place = self._place(path)
        _check_path(path)
        if old:
            text = self.read(path)
            if text.count(old) != 1:
                raise UsageError(f"{path}: `old` occurs {text.count(old)} times; it must occur once")
            changed = text.replace(old, new)
        elif os.path.lexists(place):
            raise UsageError(f"{path}: is there already; give `old`")
        else:
            changed = new
        if len(changed.encode()) > LARGEST_FILE:
            raise UsageError(f"{path}: would be larger than {LARGEST_FILE} bytes")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(changed if changed.endswith("\n") else changed + "\n", encoding="utf-8")

    def files(self) -> Mapping[str, str]:
        """Every text file, by path.

        Raises:
            UsageError: there is a link, a special file, a file that is no text, or there are too many.
        """
        found = {str(place.relative_to(self._root)): place for place in self._walk()}
        if len(found) > MOST_FILES:
            raise UsageError(f"the worktree holds more than {MOST_FILES} files")
        return {path: self.read(path) for path in sorted(found)}

    def patch(self) -> str | None:
        """All files as a unified diff against an empty folder; None if there are none.

        Raises:
            UsageError: a file cannot be told as a patch.
        """
        files = self.files()
        if not files:
            return None
        patch = patch_of_files(files)
        try:
            same = dict(patch_files(patch)) == dict(files)
        except DataError as error:
            raise UsageError(str(error)) from None
        if not same:
            raise UsageError("a file holds characters that a patch cannot carry; use plain line ends")
        return patch

    def _place(self, path: str) -> Path:
        """A path inside, with no link on the way."""
        pure = PurePosixPath(path)
        if not path or pure.is_absolute() or ".." in pure.parts or "\x00" in path:
            raise UsageError(f"{path!r}: must be a relative path inside the worktree")
        place = self._root
        for part in pure.parts:
            place = place / part
            if place.is_symlink():
                raise UsageError(f"{path}: leads through a link")
        return place

    def _walk(self) -> Iterator[Path]:
        for folder, names, files in os.walk(self._root, followlinks=False):
            names[:] = sorted(name for name in names if not name.startswith(".") and name != "__pycache__")
            for name in sorted(files):
                if not name.startswith("."):
                    yield Path(folder) / name


def _plain(place: Path) -> bool:
    """A regular file with one name: a second name may be that of a file outside."""
    found = place.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def _check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    if any(part.startswith(".") for part in parts):
        raise UsageError(f"{path}: hidden files may not be written")
    if parts[-1] in MAGIC or PurePosixPath(path).suffix not in SUFFIXES:
        raise UsageError(f"{path}: such a file may not be written; allowed: {', '.join(sorted(SUFFIXES))}")
    if parts[0].removesuffix(".py") in OUR_PACKAGES:
        raise UsageError(f"{path}: would stand in place of a package of the house")
