"""What a packed model folder holds: `weight12.json`, sealed, beside the packed shards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from reference_mechanisms.weight12.container import PackedFile, open_packed
from reference_mechanisms.weight12.digests import BLANK, SEAL, check_seal, sealed
from reference_mechanisms.weight12.errors import CorruptError, WeightError
from reference_mechanisms.weight12.layout import VERSION

MANIFEST = "weight12.json"
MEND = "get the folder again"


class Shard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A packed file and the source file it stands for; `seal` is that of its header."""

    name: str
    seal: str
    source_sha256: str
    source_bytes: int


class FolderManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a folder holds.

    Attributes:
        version: of the format.
        shards: the packed files.
        files: sha256 of every other file of the folder.
        originals: text of source files that had to change, by name.
        left_out: what the source had beside the model, and the folder has not.
    """

    version: int
    shards: tuple[Shard, ...]
    files: dict[str, str]
    originals: dict[str, str]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a folder is: the tensor just done, and bf16 bytes of all its shards."""

    shard: str
    tensor: str
    done_bytes: int
    total_bytes: int


Heard = Callable[[Progress], None]


class Tally:
    """Turns tensors done into `Progress`."""

    def __init__(self, heard: Heard, total_bytes: int) -> None:
        self._heard, self._total, self._done = heard, total_bytes, 0

    def of(self, shard: str) -> Callable[[str, int], None]:
        """The callback for the tensors of a shard."""

        def tell(tensor: str, size: int) -> None:
            self._done += size
            self._heard(Progress(shard, tensor, self._done, self._total))

        return tell


def write_manifest(manifest: FolderManifest) -> bytes:
    """The sealed text of a manifest."""
    return sealed({SEAL: BLANK, **msgspec.to_builtins(manifest)})


def read_manifest(folder: Path) -> FolderManifest:
    """The manifest of a packed folder.

    Raises:
        WeightError: this is no packed folder, or it cannot be read.
        CorruptError: the manifest was changed, or is of another version.
    """
    if not folder.is_dir():
        raise WeightError(f"{folder} is not a folder; give a folder that `weight12 pack` wrote")
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise WeightError(f"{folder} has no {MANIFEST}; give a folder that `pack` finished") from None
    except OSError as error:
        raise WeightError(f"cannot read {path}: {error.strerror}") from None
    try:
        check_seal(text)
        plain = {name: value for name, value in json.loads(text).items() if name != SEAL}
    except (ValueError, AttributeError, RecursionError) as error:  # AttributeError: no object
        raise CorruptError(f"{path} cannot be trusted: {error}; {MEND}") from None
    if plain.get("version") != VERSION:
        raise CorruptError(
            f"{path}: weight12 version {plain.get('version')}; this program reads version {VERSION}"
        )
    try:
        manifest = msgspec.convert(plain, FolderManifest)
    except msgspec.ValidationError as error:
        raise CorruptError(f"{path}: {error}; {MEND}") from None
    for name in (*(shard.name for shard in manifest.shards), *manifest.files, *manifest.originals):
        if name in {"", ".", ".."} or Path(name).name != name or "\0" in name:
            raise CorruptError(f"{path} names {name!r}, no file of the folder; do not use it")
    return manifest


def open_shard(folder: Path, shard: Shard) -> PackedFile:
    """A packed file of a folder, held to be the one of its manifest.

    Raises:
        CorruptError: it is missing, changed, or another one.
    """
    path = folder / shard.name
    if not path.is_file():
        raise CorruptError(f"{path} is missing; {MEND}")
    found = open_packed(path)
    if found.seal != shard.seal:
        raise CorruptError(f"{path} is not the file that {MANIFEST} names: its seal differs; {MEND}")
    return found


def read_file(folder: Path, name: str, digest: str) -> bytes:
    """The bytes of one of the folder's small files.

    Raises:
        WeightError: it cannot be read.
        CorruptError: it is missing or changed.
    """
    path = folder / name
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CorruptError(f"{path} is missing; {MEND}") from None
    except OSError as error:
        raise WeightError(f"cannot read {path}: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise CorruptError(f"{path}: its sha256 is not that of {MANIFEST}; {MEND}")
    return data


def folder_faults(folder: Path, heard: Heard, *, quick: bool = False) -> Iterator[str]:
    """What is wrong with a packed folder, one line each.

    Args:
        folder: the packed folder.
        heard: told of progress.
        quick: hold stored bytes against their digests, decode nothing.

    Raises:
        WeightError: this is no packed folder, or it cannot be read.
    """
    try:
        manifest = read_manifest(folder)
    except CorruptError as error:
        yield str(error)
        return
    tally = Tally(heard, sum(shard.source_bytes for shard in manifest.shards))
    for name, digest in manifest.files.items():
        try:
            read_file(folder, name, digest)
        except CorruptError as error:
            yield str(error)
    for shard in manifest.shards:
        try:
            found = open_shard(folder, shard)
        except CorruptError as error:
            yield str(error)
        else:
            yield from found.faults(tally.of(shard.name), quick=quick)
