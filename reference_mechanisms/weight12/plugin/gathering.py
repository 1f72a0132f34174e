"""The parts of a layer's matrix as a loader brings them: held to their digests, cut to this rank, joined.

Knows nothing of vLLM: where rows and columns of a part belong is told by a `Place`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reference_mechanisms.weight12 import planes
from reference_mechanisms.weight12.container import fault
from reference_mechanisms.weight12.digests import sha256
from reference_mechanisms.weight12.errors import CorruptError, WeightError
from reference_mechanisms.weight12.folder_manifest import open_shard, read_manifest
from reference_mechanisms.weight12.layout import DTYPES, GROUP, NUMPY, SUFFIXES, Packed
from reference_mechanisms.weight12.onload import repacked
from reference_mechanisms.weight12.planes import Planes

CPU = torch.device("cpu")  # named everywhere: engines load inside a context of another device
Part = Hashable  # what a loader calls a part of a fused layer: "q", 0, None


@dataclass(frozen=True, slots=True)
class Known:
    """A packed tensor of the folder, as its sealed manifests tell."""

    name: str
    shape: tuple[int, ...]


def known_tensors(folder: Path) -> dict[str, Known]:
    """The packed tensors of a folder by the sha256 of their arrays; all seals are held.

    Raises:
        WeightError: this is no packed folder, or it was changed, or is of another version.
    """
    found: dict[str, Known] = {}
    for shard in read_manifest(folder).shards:
        for name, entry in open_shard(folder, shard).manifest.tensors.items():
            if entry.codes is not None:
                found[entry.codes.sha256] = Known(name, entry.shape)
    return found


class Place(Protocol):
    """Where a part of the source belongs in the layer."""

    def rows(self, count: int, part: Part) -> Tensor:
        """Of each row of the layer, the row of a source of `count` rows that belongs there; -1 if none."""
        ...

    def columns(self, count: int, part: Part) -> tuple[int, int]:
        """The span of a source's columns that the layer has."""
        ...


class Gathering:
    """What has come of one layer."""

    def __init__(self, name: str, known: Mapping[str, Known], place: Place, *, padded: bool) -> None:
        """Wait for parts.

        Args:
            name: of the layer, for messages.
            known: from `known_tensors`.
            place: where parts belong.
            padded: rows that no part has are +0, as in embeddings whose vocabulary is rounded up.
        """
        self._name, self._known, self._place, self._padded = name, known, place, padded
        self._waiting: dict[Part, dict[str, Tensor]] = {}
        self._done: list[tuple[Tensor, Planes | Tensor]] = []  # rows of the layer, and what is there
        self._seen: set[tuple[Part, str]] = set()

    @property
    def plain(self) -> bool:
        """Whether all that came is bf16."""
        return bool(self._done) and all(isinstance(matrix, Tensor) for _, matrix in self._done)

    def take(self, suffix: str, array: Tensor, part: Part) -> None:
        """An array of a packed part; with the sixth the part is checked and placed.

        Raises:
            WeightError: it came before, is not what was packed, or cannot be cut for this rank.
        """
        self._once(part, suffix)
        waiting = self._waiting.setdefault(part, {})
        waiting[suffix] = array
        if len(waiting) == len(SUFFIXES):
            packed = self._checked(self._waiting.pop(part), part)
            self._place_part(planes.from_packed(packed), packed.shape[0], packed.shape[1], part)

    def take_plain(self, weight: Tensor, part: Part) -> None:
        """A part that was not packed, [rows, columns].

        Raises:
            WeightError: it came before, or is not bf16.
        """
        self._once(part, "")
        if weight.dtype != torch.bfloat16 or weight.dim() != 2:
            raise WeightError(
                f"{self._name}: part {part!r} is {weight.dtype} {list(weight.shape)}, no bf16 matrix"
            )
        self._place_part(weight, weight.shape[0], weight.shape[1], part)

    def finish(self, rows: int, columns: int, device: torch.device) -> Planes | Tensor:
        """The layer's matrix: bf16 if no part was packed.

        Args:
            rows: of the layer.
            columns: of the layer.
            device: where it shall be.

        Raises:
            WeightError: something is missing.
        """
        if self._waiting:
            part, found = next(iter(self._waiting.items()))
            lacking = ", ".join(suffix for suffix in SUFFIXES if suffix not in found)
            raise WeightError(f"{self._name}: part {part!r} came without {lacking}; get the folder again")
        if not self._done:
            raise WeightError(f"{self._name}: no weights came; is the folder complete, its load format auto?")
        missing = torch.ones(rows, dtype=torch.bool, device=CPU)
        for at, _ in self._done:
            missing[at] = False
        if missing.any() and not self._padded:
            first = int(missing.nonzero()[0])
            raise WeightError(
                f"{self._name}: no weights came for row {first} and {int(missing.sum()) - 1} more"
            )
        if self.plain:
            weight = torch.zeros((rows, columns), dtype=torch.bfloat16, device=device)
            for at, part in self._done:
                if isinstance(part, Tensor):
                    weight[at.to(device)] = part.to(device)
            self._done.clear()
            return weight
        return self._joined(missing, columns, device)

    def _joined(self, missing: Tensor, columns: int, device: torch.device) -> Planes:
        parts = [matrix if isinstance(matrix, Planes) else repacked(matrix) for _, matrix in self._done]
        places = [at for at, _ in self._done]
        self._done.clear()
        if missing.any():
            parts.append(planes.zeros(int(missing.sum()), columns))
            places.append(missing.nonzero().reshape(-1))
        moved = [part.to(device) for part in parts]
        whole = planes.concatenate(moved)
        if whole is None:  # more than 255 palettes in all
            whole = repacked(torch.cat([part.decode() for part in moved]))
        order = torch.cat(places)
        if not torch.equal(order, torch.arange(len(order), device=CPU)):
            whole = whole.take_rows(torch.argsort(order))
        return whole

    def _once(self, part: Part, what: str) -> None:
        packed_and_plain = (part, "") in self._seen or (
            what == "" and part in {seen for seen, _ in self._seen}
        )
        if (part, what) in self._seen or packed_and_plain:
            raise WeightError(f"{self._name}: part {part!r} came twice; give one complete folder")
        self._seen.add((part, what))

    def _checked(self, arrays: Mapping[str, Tensor], part: Part) -> Packed:
        stored = {name: _numpy(arrays[name], name) for name in SUFFIXES}
        known = self._known.get(sha256(stored.values()))
        if known is None:
            raise CorruptError(
                f"{self._name}: the stored bytes of part {part!r} have no sha256 of the manifest; "
                "get the folder again"
            )
        if len(known.shape) != 2:
            raise WeightError(f"{self._name}: tensor {known.name} has {len(known.shape)} dimensions, not two")
        packed = Packed(shape=known.shape, **stored)
        reason = fault(packed)
        if reason is not None:
            raise CorruptError(f"{self._name}: tensor {known.name}: {reason}; get the folder again")
        return packed

    def _place_part(self, matrix: Planes | Tensor, rows: int, columns: int, part: Part) -> None:
        source = self._place.rows(rows, part)
        at = (source >= 0).nonzero().reshape(-1)
        wanted = source[at]
        start, stop = self._place.columns(columns, part)
        if isinstance(matrix, Planes):
            if start % GROUP or (stop % GROUP and stop != columns):
                raise WeightError(
                    f"{self._name}: tensor parallelism cuts its {columns} columns at {start} and {stop}; "
                    f"weight12 can be cut at multiples of {GROUP}, so use fewer ranks"
                )
            if (start, stop) != (0, columns):
                matrix = matrix.take_columns(start, stop)
            if len(wanted) != rows or not torch.equal(wanted, torch.arange(rows, device=CPU)):
                matrix = matrix.take_rows(wanted)
        else:
            matrix = matrix[wanted, start:stop]
        self._done.append((at, matrix))


def _numpy(array: Tensor, suffix: str) -> npt.NDArray[Any]:
    dtype = NUMPY[DTYPES[suffix]]
    if not array.numel():
        return np.empty(array.shape, dtype)
    return array.cpu().reshape(-1).view(torch.uint8).numpy().view(dtype).reshape(array.shape)
