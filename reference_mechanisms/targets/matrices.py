"""Where a target's matrices come from and how they are multiplied: plain weights here, others elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from reference_mechanisms.targets.linear import RowLinear, prepacks


class Source(Protocol):
    """A checkpoint, as far as a target asks of it; see `checkpoint.Checkpoint`."""

    folder: Path

    def __contains__(self, name: str) -> bool:
        """Whether a tensor of this name exists."""
        ...

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor, converted."""
        ...

    def refuse_unused(self, ignore: Iterable[str], parts: Iterable[str] = ()) -> None:
        """Hold that every tensor was taken."""
        ...


class Linear(Protocol):
    """y = x W^T + b; rows do not notice each other."""

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, out_features] of x [rows, in_features]."""
        ...


class Table(Protocol):
    """An embedding."""

    def __call__(self, ids: Tensor) -> Tensor:
        """Rows [..., columns] of ids [...]."""
        ...

    def linear(self) -> Linear:
        """The same matrix as a head."""
        ...


class Matrices(Protocol):
    """Makes a target's products."""

    @property
    def kernel(self) -> str:
        """How they are computed, for the report."""
        ...

    @property
    def rows_round_alike(self) -> bool:
        """Whether a product gives a row the same bits whatever the number of rows."""
        ...

    def linear(self, parts: Sequence[tuple[str, int]], columns: int, bias: Tensor | None) -> Linear:
        """A product with matrices one above the other.

        Args:
            parts: names and rows.
            columns: of each.
            bias: of all rows, or None.
        """
        ...

    def gated(self, parts: Sequence[tuple[str, int]], columns: int) -> Linear | None:
        """A product with a gate and what it opens that gives SiLU(gate) times the other, [rows, inner].

        Args:
            parts: names and rows of the gate and of the other.
            columns: of each.

        Returns:
            None where that is no single launch.
        """
        ...

    def table(self, name: str, rows: int, columns: int) -> Table:
        """An embedding."""
        ...


class PlainTable:
    """Rows of a tensor."""

    def __init__(self, weight: Tensor, product: Callable[[Tensor], Linear] = RowLinear) -> None:
        """Take [rows, columns], and what makes a head of them."""
        self._weight, self._product = weight, product

    def __call__(self, ids: Tensor) -> Tensor:
        """See `Table`."""
        return self._weight[ids]

    def linear(self) -> Linear:
        """See `Table`."""
        return self._product(self._weight)


class PlainMatrices:
    """Matrices in the target's own type, multiplied by torch; a subclass may multiply otherwise."""

    def __init__(self, source: Source, dtype: torch.dtype, device: torch.device) -> None:
        """Take them from a checkpoint as they are asked for."""
        self._source, self._dtype, self._device = source, dtype, device

    @property
    def kernel(self) -> str:
        """See `Matrices`."""
        return "onednn prepacked" if prepacks(self._dtype, self._device) else "torch linear"

    @property
    def rows_round_alike(self) -> bool:
        """See `Matrices`."""
        return prepacks(self._dtype, self._device)

    def linear(self, parts: Sequence[tuple[str, int]], columns: int, bias: Tensor | None) -> Linear:
        """See `Matrices`."""
        return self._product(torch.cat([self._take(name, rows, columns) for name, rows in parts]), bias)

    def gated(self, parts: Sequence[tuple[str, int]], columns: int) -> Linear | None:
        """See `Matrices`."""
        del parts, columns
        return None

    def table(self, name: str, rows: int, columns: int) -> Table:
        """See `Matrices`."""
        return PlainTable(self._take(name, rows, columns), self._product)

    def _product(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return RowLinear(weight, bias)

    def _take(self, name: str, rows: int, columns: int) -> Tensor:
        return self._source.take(name, (rows, columns), self._dtype).to(self._device)
