"""Search files and folders for the canaries of unseen rows; opens no shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.errors import DataError, UsageError
from sealed_evals.campaign.canary import Encoding, canary, pack, search
from sealed_evals.campaign.crypto import derive
from sealed_evals.campaign.records import Campaign


class Leak(NamedTuple):
    """An unseen row that was found, told without its text."""

    path: Path
    line: int
    row: str  # shard and place, e.g. "003/7"
    encoding: Encoding

    @property
    def text(self) -> str:
        """One line for people."""
        how = "" if self.encoding == "plain" else f" (inside {self.encoding})"
        shard, _, place = self.row.partition("/")
        return f"{self.path} line {self.line}: row {place} of unseen shard {shard}{how}"


def unseen_rows(campaign: Campaign) -> tuple[str, ...]:
    """Shard and place of every unseen row."""
    return tuple(f"{shard.name}/{place}" for shard in campaign.shards for place in range(shard.rows))


def scan(paths: Sequence[Path], campaign: Campaign, secret: bytes) -> tuple[list[Leak], int]:
    """Every sighting of an unseen row, and how many files were searched.

    Names of files and folders are searched, too; links are not followed.

    Args:
        paths: files, or folders with all they hold.
        campaign: whose rows.
        secret: of the campaign.

    Raises:
        UsageError: a path is not there.
        DataError: a file cannot be read; what was not searched is not clean.
    """
    rows = unseen_rows(campaign)
    key = derive(secret, "canaries")
    codes = pack([canary(key, row) for row in rows])
    leaks, files = [], 0
    for path in _files(paths):
        files += 1
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataError(
                f"cannot search {path}: {error.strerror}; make it readable, or leave it out"
            ) from None
        leaks += [Leak(path, s.line, rows[s.number], s.encoding) for s in search(data, codes)]
        leaks += [Leak(path, 0, rows[s.number], s.encoding) for s in search(path.name.encode(), codes)]
    return leaks, files


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from (file for file in sorted(path.rglob("*")) if file.is_file() and not file.is_symlink())
        elif path.is_file():
            yield path
        else:
            raise UsageError(f"nothing to search at {path}; name files or folders")
