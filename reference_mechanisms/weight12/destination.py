"""The folder that is written to: each file whole or absent, finished files kept when a run breaks off."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from reference_mechanisms.weight12.errors import CallError, WeightError

MARKER = ".weight12-unfinished"
TEMPORARY = ".weight12-tmp-"
AGAIN = "then run the same command again: finished files are kept"


class Destination:
    """A folder being filled by one process. It holds `MARKER` until `finish`."""

    def __init__(self, folder: Path) -> None:
        """Use `destination` to get one."""
        self.folder = folder

    def has(self, name: str) -> bool:
        """Whether an earlier run finished this file."""
        return (self.folder / name).is_file()

    def write(self, name: str, chunks: Iterable[npt.NDArray[np.uint8]]) -> None:
        """Write a file: to a temporary name, synced, renamed.

        Raises:
            WeightError: the disk is full or the folder cannot be written.
        """
        with _explained(self.folder / name):
            descriptor, temporary = tempfile.mkstemp(dir=self.folder, prefix=TEMPORARY)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    for chunk in chunks:
                        file.write(chunk.data)
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).chmod(0o644)
                Path(temporary).replace(self.folder / name)
            finally:
                Path(temporary).unlink(missing_ok=True)

    def finish(self) -> None:
        """Say that the folder is complete."""
        (self.folder / MARKER).unlink()


@contextlib.contextmanager
def destination(folder: Path, identity: str) -> Iterator[Destination]:
    """A new or empty folder, or one that an earlier run of the same work left unfinished.

    Args:
        folder: made if absent.
        identity: what is being done to which source; equal for runs that may continue each other.

    Raises:
        CallError: it is no folder, is not empty, holds other unfinished work, or is in use.
        WeightError: it cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise CallError(f"{folder} is not a folder; give a new or empty one")
    marker = folder / MARKER
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        found = [path.name for path in folder.iterdir() if not path.name.startswith(TEMPORARY)]
    if found and MARKER not in found:
        raise CallError(f"{folder} is not empty (it has {min(found)}); give a new or empty folder")
    with contextlib.ExitStack() as stack:
        with _explained(marker):
            handle = stack.enter_context(marker.open("a+"))
            _lock(handle, folder)
            handle.seek(0)
            earlier = handle.read()
            if earlier != identity and set(found) - {MARKER}:
                raise CallError(
                    f"{folder} holds unfinished work on another source; remove it or give another folder"
                )
            handle.truncate(0)
            handle.write(identity)
            handle.flush()
            for path in folder.glob(f"{TEMPORARY}*"):
                path.unlink()
        yield Destination(folder)


def _lock(handle: IO[str], folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CallError(f"{folder} is in use by another run; wait for it or give another folder") from None


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WeightError(f"cannot write {path}: {error.strerror}; make room or mend it, {AGAIN}") from None
