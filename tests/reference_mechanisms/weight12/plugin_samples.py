"""Packed parts as a loader brings them, and a loader that cuts them as vLLM does."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reference_mechanisms.weight12.digests import sha256
from reference_mechanisms.weight12.encode import encode
from reference_mechanisms.weight12.layout import Packed
from reference_mechanisms.weight12.plugin.gathering import Gathering, Known, Part
from tests.reference_mechanisms.weight12.samples import Bits


@dataclass(frozen=True)
class FusedLoader:
    """Parts one above the other, each rank its share; `columns` ranks share the columns instead."""

    sizes: dict[Part, int]  # rows of each part, whole
    rank: int = 0
    ranks: int = 1
    by_columns: bool = False

    def __call__(self, param: nn.Parameter, loaded: Tensor, part: Part = None) -> None:
        data = param.data
        if getattr(param, "input_dim", None) == 1 and self.by_columns:
            width = data.shape[1]
            loaded = loaded[:, self.rank * width : (self.rank + 1) * width]
        if getattr(param, "output_dim", None) == 0 and not self.by_columns:
            before = sum(size for name, size in list(self.sizes.items())[: list(self.sizes).index(part)])
            share = self.sizes[part] // self.ranks
            data = data[before // self.ranks : before // self.ranks + share]
            loaded = loaded[self.rank * share : (self.rank + 1) * share]
        assert data.shape == loaded.shape, (data.shape, loaded.shape)
        data.copy_(loaded)


def known(packed: Packed, name: str = "model.up.weight") -> dict[str, Known]:
    return {sha256(array for _, array in packed.arrays()): Known(name, packed.shape)}


def give(gathering: Gathering, packed: Packed, part: Part, *suffixes: str) -> None:
    """The arrays as safetensors gives them to torch; all if none is named."""
    for suffix, array in packed.arrays():
        if not suffixes or suffix in suffixes:
            tensor = torch.from_numpy(array.copy())
            gathering.take(suffix, tensor.view(torch.bfloat16) if suffix == "rawval" else tensor, part)


def packed_and_known(parts: dict[Part, Bits]) -> tuple[dict[Part, Packed], dict[str, Known]]:
    packed = {part: encode(bits) for part, bits in parts.items()}
    found: dict[str, Known] = {}
    for part, one in packed.items():
        found |= known(one, f"model.{part}.weight")
    return packed, found
