"""Tensors of a drafter folder, plain or as small integers, whichever config.json says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reference_mechanisms.drafters.fields import Fields
from reference_mechanisms.drafters.integers import Scaled, group_of, restore
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.targets.checkpoint import Checkpoint

FIELD = "specpilot_storage"
FORMAT, VERSION = "scaled-integers", 1
SCALE = "_scale"
BYTES, NIBBLES = "I8", "U8"


def declaration() -> dict[str, Any]:
    """What config.json says of a folder with integers."""
    return {"format": FORMAT, "version": VERSION}


def has_integers(raw: dict[str, Any], where: str) -> bool:
    """Whether a config.json declares integers; without the field every tensor is plain.

    Raises:
        DrafterError: the format or its version is unknown.
    """
    fields = Fields(raw, where)
    if FIELD not in fields:
        return False
    own = fields.inside(FIELD)
    own.refuse_strangers({"format", "version"})
    own.choice("format", (FORMAT,))
    if own.count("version") != VERSION:
        raise own.wrong("version", f"{VERSION}, the only one that this release reads")
    return True


class StoredTensors:
    """The tensors of a checkpoint, integers multiplied out."""

    def __init__(self, checkpoint: Checkpoint, *, integers: bool) -> None:
        """Read from an open checkpoint; without `integers` a tensor of them is refused by name."""
        self.checkpoint = checkpoint
        self._integers = (
            {name for name in checkpoint.names if checkpoint.stored_as(name) in (BYTES, NIBBLES)}
            if integers
            else set()
        )

    @property
    def names(self) -> frozenset[str]:
        """Every tensor, scales left out."""
        return self.checkpoint.names - {name + SCALE for name in self._integers}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor, converted to `dtype`.

        Raises:
            DrafterError: its scales are no numbers, or it cannot have any.
            TargetError: it is missing, or it or its scales have another shape or type.
        """
        if name not in self._integers:
            return self.checkpoint.take(name, shape, dtype)
        if len(shape) != 2:
            raise DrafterError(f"{self.checkpoint.folder}: tensor {name} is no matrix, so it has no scales")
        rows, columns = shape
        if self.checkpoint.stored_as(name) == BYTES:
            integers = self.checkpoint.take_exact(name, shape, BYTES)
            return restore(Scaled(integers, self._scales(name, (rows,))), dtype)
        group = group_of(columns)
        if group is None:
            raise DrafterError(
                f"{self.checkpoint.folder}: tensor {name} has {columns} columns, no whole groups; "
                f"store it as {BYTES}"
            )
        integers = self.checkpoint.take_exact(name, (rows, columns // 2), NIBBLES)
        return restore(Scaled(integers, self._scales(name, (rows, columns // group))), dtype)

    def _scales(self, name: str, shape: tuple[int, ...]) -> Tensor:
        scales = self.checkpoint.take(name + SCALE, shape, torch.float32)
        if not bool((torch.isfinite(scales) & (scales >= 0)).all()):
            raise DrafterError(
                f"{self.checkpoint.folder}: tensor {name}{SCALE} holds a scale that is no number of at least "
                "0; store the drafter again"
            )
        return scales
