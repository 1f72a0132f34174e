"""How long a packed folder takes to load on this machine: read, hold to its digests, decode on the CPU."""

from __future__ import annotations

import json
import os
import platform
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import msgspec
import torch

from reference_mechanisms.weight12 import planes
from reference_mechanisms.weight12.folder_manifest import open_shard, read_manifest
from reference_mechanisms.weight12.layout import stored_bytes

CHUNK = 1 << 24


class LoadTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement; files were read before, so they lie in the page cache.

    Attributes:
        packed_bytes: of the packed tensors as stored.
        bf16_bytes: of the same tensors in bf16.
        read_s: to read the packed files, nothing else.
        check_s: to hold every packed tensor to its sha256 and its structure.
        decode_s: to decode every packed tensor with torch.
        threads: of torch, used by decoding alone.
    """

    machine: str
    cpus: int
    date: str
    version: str
    torch: str
    threads: int
    folder: str
    tensors: int
    packed_bytes: int
    bf16_bytes: int
    read_s: float
    check_s: float
    decode_s: float


def measure(folder: Path) -> LoadTimes:
    """Load a packed folder and drop it again.

    Raises:
        WeightError: this is no packed folder, or it was changed.
    """
    shards = [open_shard(folder, shard) for shard in read_manifest(folder).shards]
    for shard in shards:
        _read(shard.path)
    start = time.perf_counter()
    for shard in shards:
        _read(shard.path)
    read = time.perf_counter() - start
    checking, decoding = 0.0, 0.0
    tensors, packed_bytes, bf16_bytes = 0, 0, 0
    for shard in shards:
        for name, entry in shard.manifest.tensors.items():
            if entry.codes is None or len(entry.shape) != 2:
                continue
            start = time.perf_counter()
            packed = shard.packed(name)
            checked = time.perf_counter()
            planes.from_packed(packed).decode()
            checking += checked - start
            decoding += time.perf_counter() - checked
            tensors += 1
            packed_bytes += stored_bytes(entry.shape, entry.codes.palettes, entry.codes.raw_rows)
            bf16_bytes += 2 * entry.shape[0] * entry.shape[1]
    return LoadTimes(
        machine=_processor(),
        cpus=os.cpu_count() or 0,
        date=datetime.now(UTC).date().isoformat(),
        version=metadata.version("specpilot-harness"),
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        folder=folder.name,
        tensors=tensors,
        packed_bytes=packed_bytes,
        bf16_bytes=bf16_bytes,
        read_s=round(read, 3),
        check_s=round(checking, 3),
        decode_s=round(decoding, 3),
    )


def to_json(times: LoadTimes) -> str:
    """The measurement as JSON text."""
    return json.dumps(msgspec.to_builtins(times), indent=2) + "\n"


def _read(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(CHUNK):
            pass


def _processor() -> str:
    """The processor's own name where the system tells it."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
