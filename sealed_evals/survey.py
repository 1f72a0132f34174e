"""Which of the pinned sets are here, and whether they are what the catalogue says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from harness.codec import Record
from harness.errors import DataError
from sealed_evals.catalogue import Catalogue, SetEntry
from sealed_evals.load import pinned_set
from sealed_evals.sources import LoadDataset, SetNotFound


class SetStatus(Record, frozen=True):
    """What became of looking for one set."""

    name: str
    status: Literal["ok", "mismatch", "missing"]
    source: str | None = None  # the rest is given where the set is ok
    rows: int | None = None
    raw_sha256: str | None = None
    prompts_sha256: str | None = None
    merkle_root: str | None = None
    message: str = ""  # why not, where it is not


def survey(
    catalogue: Catalogue,
    names: Sequence[str],
    evals_dir: Path | None,
    load_dataset: LoadDataset | None = None,
    *,
    hub: bool,
) -> tuple[SetStatus, ...]:
    """Look for sets and check their pins; one that fails does not hide the others.

    Args:
        catalogue: of the sets.
        names: of the sets to look for; empty for all.
        evals_dir: folder of original files, or None.
        load_dataset: in place of `datasets.load_dataset`.
        hub: whether the hub may be asked.

    Raises:
        UsageError: an unknown name, or `evals_dir` is not a folder.
    """
    entries = [catalogue.entry(name) for name in names] or catalogue.sets
    return tuple(_status(entry, evals_dir, load_dataset, hub=hub) for entry in entries)


def _status(
    entry: SetEntry, evals_dir: Path | None, load_dataset: LoadDataset | None, *, hub: bool
) -> SetStatus:
    try:
        found = pinned_set(entry, evals_dir, load_dataset, hub=hub)
    except SetNotFound as error:
        return SetStatus(name=entry.name, status="missing", message=str(error))
    except DataError as error:
        return SetStatus(name=entry.name, status="mismatch", message=str(error))
    return SetStatus(
        name=entry.name,
        status="ok",
        source=found.source,
        rows=found.rows,
        raw_sha256=found.raw_sha256,
        prompts_sha256=found.prompts_sha256,
        merkle_root=found.merkle_root,
    )
