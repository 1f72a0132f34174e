"""A packed folder read like a plain checkpoint: tensors by their own names, decoded or still packed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.checkpoint import PLAIN_TYPES, refuse_unused
from reference_mechanisms.weight12 import planes
from reference_mechanisms.weight12.container import PackedFile
from reference_mechanisms.weight12.folder_manifest import open_shard, read_manifest
from reference_mechanisms.weight12.planes import Planes

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class PackedCheckpoint:
    """The tensors of a packed folder, held to their digests as they are taken."""

    def __init__(self, folder: Path) -> None:
        """Hold every seal and list the tensors; files stay mapped while this lives.

        Raises:
            WeightError: this is no packed folder, or it was changed.
        """
        self.folder = folder
        manifest = read_manifest(folder)
        self._originals = manifest.originals
        shards = (open_shard(folder, shard) for shard in manifest.shards)
        self._files: dict[str, PackedFile] = {name: file for file in shards for name in file.manifest.tensors}
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Whether a tensor of this name exists."""
        return name in self._files

    @property
    def names(self) -> frozenset[str]:
        """Every tensor of the source."""
        return frozenset(self._files)

    def config(self) -> dict[str, Any]:
        """The source's config.json, without what packing added.

        Raises:
            TargetError: the folder was packed without one.
        """
        text = self._originals.get("config.json")
        if text is None:
            raise TargetError(f"{self.folder} was packed without a config.json; pack a complete model folder")
        found: dict[str, Any] = json.loads(text)
        return found

    def packed(self, name: str) -> bool:
        """Whether a tensor is packed, not kept as it was."""
        return name in self._files and self._files[name].manifest.tensors[name].codes is not None

    def take_planes(self, name: str, rows: int, columns: int) -> Planes:
        """A packed matrix, still packed.

        Raises:
            TargetError: it is missing, kept, or has another shape.
            CorruptError: it is not what was packed.
        """
        file = self._entry(name, (rows, columns))
        return planes.from_packed(file.packed(name))

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor as the source had it, converted to `dtype`.

        Raises:
            TargetError: it is missing, has another shape, or is stored in a quantised type.
            CorruptError: it is not what was packed.
        """
        file = self._entry(name, shape)
        stored = file.manifest.tensors[name].dtype
        if stored not in PLAIN_TYPES:
            raise TargetError(f"{self.folder}: tensor {name} is stored as {stored}; give a plain checkpoint")
        data = np.concatenate([np.empty(0, np.uint8), *file.source_bytes(name)])
        return torch.from_numpy(data).view(TYPES[stored]).reshape(shape).to(dtype)

    def refuse_unused(self, ignore: Iterable[str], parts: Iterable[str] = ()) -> None:
        """Hold that every tensor was taken; see `Checkpoint.refuse_unused`.

        Raises:
            TargetError: naming the first that was not.
        """
        refuse_unused(self.folder, self.names - self._taken, ignore, parts)

    def _entry(self, name: str, shape: tuple[int, ...]) -> PackedFile:
        if name not in self._files:
            raise TargetError(f"{self.folder}: tensor {name} is missing; give the complete checkpoint")
        found = self._files[name].manifest.tensors[name].shape
        if found != shape:
            raise TargetError(f"{self.folder}: tensor {name} has shape {found}, config.json asks for {shape}")
        self._taken.add(name)
        return self._files[name]
