"""Where the bytes of a set come from: a folder, an installed package, the hub, a user's own file.

The only module that touches files and the network. What it returns is not verified yet.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.codec import canonical_json
from harness.errors import DataError, UsageError
from harness.plan import SetSpec
from sealed_evals.catalogue import HubSource, RowLayout, SetEntry, own_layout

LoadDataset = Callable[..., Iterable[Mapping[str, Any]]]  # signature of datasets.load_dataset

INSTALL_HUB = "pip install 'specpilot-harness[hub]'"


class SetNotFound(DataError):
    """None of the sources of a set has it; nothing was found to be wrong."""


class Found(NamedTuple):
    """Bytes of a set, where they lie and how they are read."""

    source: str  # as `harness.records.PromptSet.source` says it
    where: str  # path or hub address, for messages
    data: bytes  # of the file; hub rows as canonical JSON lines
    layout: RowLayout


def find(entry: SetEntry, folder: Path | None, load_dataset: LoadDataset | None, *, hub: bool) -> Found:
    """The set from its first source that has it: folder, installed package, hub.

    Args:
        entry: the set.
        folder: of original files, or None.
        load_dataset: in place of `datasets.load_dataset`; None imports it when it is needed.
        hub: whether the hub may be asked.

    Raises:
        SetNotFound: no source has it; the message says how to get it.
        UsageError: `folder` is not a folder.
        DataError: a file is there but cannot be read.
    """
    path = find_local(entry, folder)
    if path is not None:
        return Found(_local_source(entry, folder, path), str(path), read(path), entry.layout)
    if hub and entry.hub is not None:
        return _from_hub(entry, entry.hub, load_dataset)
    ask = "; --hub asks the hub" if entry.hub is not None else ""
    raise SetNotFound(f"{entry.name} is not on this machine; {_ways(entry)}{ask}")


def find_local(entry: SetEntry, folder: Path | None) -> Path | None:
    """File of the set in the folder or in an installed package; None if neither has it.

    Raises:
        UsageError: `folder` is not a folder.
    """
    if folder is not None and not folder.is_dir():
        raise UsageError(
            f"the evaluation folder {folder} is not a folder; mend --evals-dir or SPECPILOT_EVALS_DIR"
        )
    if folder is not None and entry.file is not None and (folder / entry.file).is_file():
        return folder / entry.file
    if entry.package is not None:
        spec = importlib.util.find_spec(entry.package.module)
        for root in (spec.submodule_search_locations or ()) if spec is not None else ():
            if (Path(root) / entry.package.file).is_file():
                return Path(root) / entry.package.file
    return None


def own_file(spec: SetSpec, known: Iterable[str]) -> Found:
    """A prompt file of the user's own.

    Raises:
        UsageError: its name is one of the `known` sets, which would pass it off as that set; or
            there is no such file.
        DataError: the file cannot be read.
    """
    if spec.name in known:
        raise UsageError(
            f"{spec.path}: the name {spec.name!r} belongs to a pinned set; choose another `name`"
        )
    path = Path(str(spec.path))
    if not path.is_file():
        raise UsageError(f"set {spec.name!r}: no file {path}; mend `path`")
    return Found("file", str(path), read(path), own_layout(spec.field))


def read(path: Path) -> bytes:
    """Bytes of a file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def _local_source(entry: SetEntry, folder: Path | None, path: Path) -> str:
    if folder is not None and entry.file is not None and path == folder / entry.file:
        return "folder"
    if entry.package is not None and entry.package.module == __package__:
        return "embedded"
    return f"package {entry.package.distribution}" if entry.package is not None else "folder"


def _from_hub(entry: SetEntry, hub: HubSource, load_dataset: LoadDataset | None) -> Found:
    """Rows of the pinned revision; of the newest one where the pinned one is gone."""
    try:
        import datasets  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        needs = f"the hub needs `datasets`: {INSTALL_HUB}, or {_ways(entry)}"
        raise SetNotFound(f"{entry.name} is not on this machine and {needs}") from None
    load = load_dataset or datasets.load_dataset
    revision, note = hub.revision, ""
    try:
        try:
            rows = load(hub.id, hub.config, split=hub.split, revision=revision)
        except datasets.exceptions.DatasetNotFoundError:
            revision, note = "main", f"; the pinned revision {hub.revision} is gone"
            rows = load(hub.id, hub.config, split=hub.split, revision=revision)
        lines = [canonical_json(dict(row)) + b"\n" for row in rows]
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        origin = f"{entry.name} cannot be had from the hub ({hub.id}@{revision}{note})"
        raise SetNotFound(f"{origin}: {_line(error)}; {_ways(entry)}") from None
    return Found(f"hub {hub.id}@{revision}", f"{hub.id}@{revision}", b"".join(lines), hub.layout)


def _ways(entry: SetEntry) -> str:
    ways = []
    if entry.file is not None:
        ways.append(f"put the original {entry.file} into a folder and name it with --evals-dir")
    if entry.package is not None:
        ways.append(f"pip install {entry.package.distribution}")
    return " or ".join(ways)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
