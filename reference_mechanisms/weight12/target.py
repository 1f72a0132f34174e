"""The reference engine's target with packed matrices, from a packed folder or packed while it is loaded.

On a CUDA device the kernels read the packed weights, 64 rows at once: in their own order, which is the same
for any number of rows, so one-token and verify steps agree bit for bit. Matrices that the format keeps go
through the same schedule in bf16. On a CPU every matrix goes through
the format once, at load, and is multiplied as plain ones are: same bits, nothing saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reference_mechanisms.errors import TargetError
from reference_mechanisms.kernels.weight12.arrange import arrange, arrange_raw, in_turn
from reference_mechanisms.targets.checkpoint import Checkpoint
from reference_mechanisms.targets.config import parse_config, read_json
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.hybrid_config import parse_hybrid_config
from reference_mechanisms.targets.linear import RowLinear, prepacks
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.targets.loading import is_dense_config
from reference_mechanisms.targets.matrices import Linear, PlainTable, Source, Table
from reference_mechanisms.weight12 import planes, product
from reference_mechanisms.weight12.folder_manifest import MANIFEST
from reference_mechanisms.weight12.onload import packed_at_load, repacked
from reference_mechanisms.weight12.packed_checkpoint import PackedCheckpoint
from reference_mechanisms.weight12.planes import Planes
from reference_mechanisms.weight12.raw_matrices import gated_linear, opens, raw_linear


class PackedLinear:
    """y = x W^T + b on a CUDA device."""

    def __init__(self, weight: product.Stored, bias: Tensor | None = None) -> None:
        """Take a stored matrix and a bias [N]."""
        self._weight, self._bias = weight, bias

    @property
    def units(self) -> Tensor | None:
        """Most of what a product reads; None if it lies in several tensors."""
        return self._weight.tensors[0] if self._weight.layout == "stream" else None

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, N] of x [rows, K]; more than 64 rows as several products, so that none notices."""
        return product.by_parts(x, lambda part: product.linear(part, self._weight, self._bias))


class PackedTable:
    """An embedding on a CUDA device."""

    def __init__(self, weight: product.Stored) -> None:
        """Take a stored matrix."""
        self._weight = weight

    def __call__(self, ids: Tensor) -> Tensor:
        """Rows [..., K] of ids [...]."""
        return product.embed(ids, self._weight)

    def linear(self) -> Linear:
        """The same matrix as a head."""
        return PackedLinear(self._weight)


class PackedMatrices:
    """A target's matrices in twelve bits; those that the format keeps stay bf16."""

    def __init__(self, source: Source, device: torch.device, *, gates: bool = False) -> None:
        """Take them from a packed or a plain checkpoint as they are asked for.

        Args:
            source: the checkpoint.
            device: of the products.
            gates: open gates in the launch of their product, where the streaming kernels run.
        """
        self._source, self._device = source, device
        self._gates = gates and product.streams(device)
        # Kept matrices: cuBLAS would pick a kernel, and so a rounding, by the number of rows.
        self._plain = raw_linear if product.streams(device) else RowLinear

    @property
    def kernel(self) -> str:
        """See `targets.matrices.Matrices`."""
        if self._device.type != "cuda":
            return "weight12, decoded at load"
        return "weight12, streamed" if product.streams(self._device) else "weight12, triton"

    @property
    def rows_round_alike(self) -> bool:
        """See `targets.matrices.Matrices`."""
        return product.streams(self._device) or prepacks(torch.bfloat16, self._device)

    def linear(self, parts: Sequence[tuple[str, int]], columns: int, bias: Tensor | None) -> Linear:
        """See `targets.matrices.Matrices`."""
        found = [self._matrix(name, rows, columns) for name, rows in parts]
        packed = [matrix for matrix in found if isinstance(matrix, Planes)]
        if len(packed) < len(found):  # one kept part: a product has one form
            plain = [matrix.decode() if isinstance(matrix, Planes) else matrix for matrix in found]
            return self._plain(torch.cat(plain), bias)
        whole = planes.concatenate(packed)
        if whole is None:
            whole = repacked(torch.cat([matrix.decode() for matrix in packed]))
        if self._device.type != "cuda":
            return RowLinear(whole.decode(), bias)
        return PackedLinear(product.store(whole), bias)

    def gated(self, parts: Sequence[tuple[str, int]], columns: int) -> Linear | None:
        """See `targets.matrices.Matrices`; packed anew, since the rows come in another order."""
        if not self._gates or not opens(parts):
            return None
        found = [self._matrix(name, rows, columns) for name, rows in parts]
        whole = torch.cat([matrix.decode() if isinstance(matrix, Planes) else matrix for matrix in found])
        whole = whole[in_turn(len(whole)).to(whole.device)]
        if not all(isinstance(matrix, Planes) for matrix in found):
            return gated_linear(arrange_raw(whole))
        return gated_linear(arrange(repacked(whole).arrays(), columns))

    def table(self, name: str, rows: int, columns: int) -> Table:
        """See `targets.matrices.Matrices`."""
        found = self._matrix(name, rows, columns)
        if isinstance(found, Tensor):
            return PlainTable(found, self._plain)
        return (
            PackedTable(product.store(found)) if self._device.type == "cuda" else PlainTable(found.decode())
        )

    def _matrix(self, name: str, rows: int, columns: int) -> Planes | Tensor:
        if isinstance(self._source, PackedCheckpoint) and self._source.packed(name):
            return self._source.take_planes(name, rows, columns).to(self._device)
        weight = self._source.take(name, (rows, columns), torch.bfloat16).to(self._device)
        found = None if isinstance(self._source, PackedCheckpoint) else packed_at_load(weight)
        return weight if found is None else found


def load_packed_target(
    folder: Path, dtype: torch.dtype, device: torch.device, *, gates: bool = False
) -> LlamaTarget | HybridTarget:
    """Load a target from a packed folder; a plain one is packed while it is loaded.

    `gates` is that of `PackedMatrices`.

    Raises:
        TargetError: the folder is no complete checkpoint of a known architecture, or `dtype` is not bf16.
        WeightError: the packed folder was changed.
    """
    if dtype != torch.bfloat16:
        raise TargetError(f"weight12 holds bfloat16 weights; `target.dtype` is {str(dtype).split('.')[-1]}")
    with torch.inference_mode():
        if (folder / MANIFEST).is_file():
            packed = PackedCheckpoint(folder)
            return _made(packed.config(), packed, dtype, device, gates)
        with Checkpoint(folder) as checkpoint:
            return _made(read_json(folder / "config.json"), checkpoint, dtype, device, gates)


def load_packed_llama(
    folder: Path, dtype: torch.dtype, device: torch.device, *, gates: bool = False
) -> LlamaTarget:
    """The same of a dense target.

    Raises:
        TargetError: as there, or the target is none.
        WeightError: as there.
    """
    found = load_packed_target(folder, dtype, device, gates=gates)
    if not isinstance(found, LlamaTarget):
        raise TargetError(f"{folder} holds a target with recurrent layers; give a dense one")
    return found


def _made(
    raw: Mapping[str, Any],
    source: PackedCheckpoint | Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    gates: bool,
) -> LlamaTarget | HybridTarget:
    where, matrices = str(source.folder / "config.json"), PackedMatrices(source, device, gates=gates)
    if is_dense_config(raw, where):
        return LlamaTarget(parse_config(raw, where), source, dtype, device, matrices)
    return HybridTarget(parse_hybrid_config(raw, where), source, dtype, device, matrices)
