"""A whole Hugging Face folder packed, and given back byte for byte.

Shards are done one by one, in the memory of one; a run that broke off is continued by the same call.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reference_mechanisms.targets.checkpoint import INDEX, SINGLE, SUFFIX, Checkpoint
from reference_mechanisms.targets.config import read_json
from reference_mechanisms.weight12.container import PackedFile, open_packed
from reference_mechanisms.weight12.destination import Destination, destination
from reference_mechanisms.weight12.errors import CorruptError, WeightError
from reference_mechanisms.weight12.folder_manifest import (
    MANIFEST,
    FolderManifest,
    Heard,
    Shard,
    Tally,
    open_shard,
    read_file,
    read_manifest,
    write_manifest,
)
from reference_mechanisms.weight12.layout import VERSION, Bytes, reason_to_keep
from reference_mechanisms.weight12.manifest import KEY_VERSION
from reference_mechanisms.weight12.tensorfile import PREFIX, TensorFile, open_file
from reference_mechanisms.weight12.writer import pack_file

CONFIG = "config.json"
QUANTISED = "quantization_config"  # what loaders ask before they trust tensor names
METHOD = "weight12"
WEIGHTS = (SUFFIX, ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5", ".msgpack")


def pack_folder(source: Path, target: Path, heard: Heard) -> FolderManifest:
    """Pack a model folder: bf16 matrices to 12 bits a weight, all else as it is.

    Args:
        source: folder with safetensors, one file or shards with an index.
        target: a new or empty folder, or one that the same call left unfinished.
        heard: told of each tensor.

    Raises:
        MechanismError: the source cannot be packed, or the target not written.
    """
    names = _shard_names(source)
    config = _plain_config(source)
    files = {name: open_file(source / name) for name in names}
    _refuse_unfit(source, files)
    copies, left_out = _others(source, names)
    tally = Tally(heard, sum(file.size for file in files.values()))
    with destination(target, _identity("pack", files)) as out:
        shards: list[Shard] = []
        kept: list[str] = []
        weight_map: dict[str, str] = {}
        total = 0
        for name, file in files.items():
            packed = _done_shard(out, name, file, tally) or _pack_shard(out, name, file, tally)
            digest = packed.manifest.source_sha256
            shards.append(Shard(name=name, seal=packed.seal, source_sha256=digest, source_bytes=file.size))
            entries = packed.manifest.tensors.items()
            kept += [tensor for tensor, entry in entries if entry.kept is not None and len(entry.shape) > 1]
            weight_map |= dict.fromkeys(packed.file.slots, name)
            total += sum(slot.end - slot.begin for slot in packed.file.slots.values())
        digests, originals = {}, {}
        for name in copies:
            digests[name] = _write_small(out, name, _bytes(source / name))
        if config is not None:
            method = {"quant_method": METHOD, "version": VERSION, "kept": kept}
            originals[CONFIG] = _bytes(source / CONFIG).decode()
            digests[CONFIG] = _write_small(out, CONFIG, _json({**config, QUANTISED: method}))
        if names != [SINGLE]:
            originals[INDEX] = _bytes(source / INDEX).decode()
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            digests[INDEX] = _write_small(out, INDEX, _json(index))
        manifest = FolderManifest(
            version=VERSION,
            shards=tuple(shards),
            files=digests,
            originals=originals,
            left_out=tuple(left_out),
        )
        _write_small(out, MANIFEST, write_manifest(manifest))
        out.finish()
    return manifest


def unpack_folder(source: Path, target: Path, heard: Heard) -> FolderManifest:
    """Give a packed folder's source back: every file with the bytes it had.

    Args:
        source: a folder that `pack_folder` wrote.
        target: a new or empty folder, or one that the same call left unfinished.
        heard: told of each tensor.

    Raises:
        MechanismError: the source is not what was packed, or the target cannot be written.
    """
    manifest = read_manifest(source)
    shards = {shard.name: open_shard(source, shard) for shard in manifest.shards}
    identity = _identity("unpack", {name: shard.file for name, shard in shards.items()})
    tally = Tally(heard, sum(shard.source_bytes for shard in manifest.shards))
    with destination(target, identity) as out:
        for shard in manifest.shards:
            found = shards[shard.name]
            tell = tally.of(shard.name)
            if out.has(shard.name) and _file_digest(target / shard.name) == shard.source_sha256:
                tell("", shard.source_bytes)
                continue
            out.write(shard.name, _source_file(found, tell))
        for name, digest in manifest.files.items():
            data = read_file(source, name, digest)
            _write_small(out, name, manifest.originals[name].encode() if name in manifest.originals else data)
        out.finish()
    return manifest


def _pack_shard(out: Destination, name: str, file: TensorFile, tally: Tally) -> PackedFile:
    out.write(name, pack_file(file, tally.of(name)).chunks())
    return open_packed(out.folder / name)


def _done_shard(out: Destination, name: str, file: TensorFile, tally: Tally) -> PackedFile | None:
    """What an earlier run packed, if it is whole and of the source's present bytes."""
    if not out.has(name):
        return None
    try:
        packed = open_packed(out.folder / name)
    except CorruptError:
        return None
    if packed.manifest.source_sha256 != _file_digest(file.path):
        return None
    if any(packed.faults(lambda *_: None, quick=True)):
        return None
    tally.of(name)("", file.size)
    return packed


def _source_file(packed: PackedFile, heard: Callable[[str, int], None]) -> Iterator[Bytes]:
    header = packed.manifest.source_header.encode()
    start = len(header).to_bytes(PREFIX, "little") + header
    whole = hashlib.sha256(start)
    yield np.frombuffer(start, np.uint8)
    for name in packed.manifest.tensors:
        for chunk in packed.source_bytes(name):
            whole.update(chunk.data)
            yield chunk
        heard(name, packed.source_size(name))
    if whole.hexdigest() != packed.manifest.source_sha256:
        raise CorruptError(f"{packed.path}: it does not give the source file back: their sha256 differ")


def _shard_names(source: Path) -> list[str]:
    """The weight files of a plain model folder; its index fits them."""
    if not source.is_dir():
        raise WeightError(f"{source} is not a folder; give a Hugging Face model folder")
    if (source / MANIFEST).exists():
        raise WeightError(f"{source} is packed already (it has {MANIFEST}); give the bf16 folder")
    with Checkpoint(source):
        pass
    if (source / SINGLE).is_file():
        return [SINGLE]
    return sorted(set(read_json(source / INDEX)["weight_map"].values()))


def _plain_config(source: Path) -> dict[str, Any] | None:
    if not (source / CONFIG).is_file():
        return None
    config = read_json(source / CONFIG)
    if QUANTISED in config:
        raise WeightError(f"{source / CONFIG} has {QUANTISED}: already quantised; give the bf16 folder")
    return config


def _refuse_unfit(source: Path, files: Mapping[str, TensorFile]) -> None:
    for file in files.values():
        if KEY_VERSION in file.metadata:
            raise WeightError(f"{file.path} is packed already; give the bf16 folder")
    slots = [slot for file in files.values() for slot in file.slots.values()]
    reasons = [reason_to_keep(slot.dtype, slot.shape) for slot in slots]
    if None not in reasons:
        most = Counter(reasons).most_common(1)[0][0] if reasons else "no tensors"
        raise WeightError(f"{source} has nothing to pack: no bf16 matrix of some size (mostly: {most})")


def _others(source: Path, names: list[str]) -> tuple[list[str], list[str]]:
    """Files to copy, and what is left out: folders, hidden files, other weights."""
    copies: list[str] = []
    left_out: list[str] = []
    for path in sorted(source.iterdir()):
        if path.name in {*names, CONFIG, INDEX}:
            continue
        plain = path.is_file() and not path.name.startswith(".") and not path.name.endswith(WEIGHTS)
        (copies if plain else left_out).append(path.name)
    return copies, left_out


def _identity(work: str, files: Mapping[str, TensorFile]) -> str:
    found = hashlib.sha256()
    for name, file in files.items():
        found.update(f"{name}\n{file.size}\n".encode() + file.text)
    return f"{work} weight12 version {VERSION} {found.hexdigest()}\n"


def _write_small(out: Destination, name: str, data: bytes) -> str:
    out.write(name, [np.frombuffer(data, np.uint8)])
    return hashlib.sha256(data).hexdigest()


def _json(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise WeightError(f"cannot read {path}: {error.strerror}") from None


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise WeightError(f"cannot read {path}: {error.strerror}") from None
