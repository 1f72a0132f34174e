"""What each tensor of a packed folder costs, read from its manifests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reference_mechanisms.weight12.folder_manifest import open_shard, read_manifest
from reference_mechanisms.weight12.layout import stored_bytes


@dataclass(frozen=True, slots=True)
class TensorLine:
    """One tensor.

    Attributes:
        stored: "12 bit", or why it is stored as it was.
        bits: stored bits a weight; None for what is not packed.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: str
    packed: bool
    bits: float | None
    source_bytes: int
    stored_bytes: int
    raw_rows: int


def survey(folder: Path) -> list[TensorLine]:
    """The tensors of a packed folder, in the order of their files.

    Raises:
        WeightError: this is no packed folder, or its headers were changed.
    """
    lines = []
    for shard in read_manifest(folder).shards:
        found = open_shard(folder, shard)
        for name, entry in found.manifest.tensors.items():
            source, codes = found.source_size(name), entry.codes
            size = source if codes is None else stored_bytes(entry.shape, codes.palettes, codes.raw_rows)
            lines.append(
                TensorLine(
                    name=name,
                    dtype=entry.dtype,
                    shape=entry.shape,
                    stored=entry.kept or "12 bit",
                    packed=codes is not None,
                    bits=16 * size / source if codes is not None else None,
                    source_bytes=source,
                    stored_bytes=size,
                    raw_rows=codes.raw_rows if codes is not None else 0,
                )
            )
    return lines
