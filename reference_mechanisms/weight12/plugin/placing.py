"""Where rows and columns of a stored tensor belong in a layer, asked of the layer's own loader."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from reference_mechanisms.weight12.plugin.gathering import CPU, Part


class LayerPlace:
    """A `gathering.Place`: fused layers, tensor parallel ranks and padding are as the loader has them."""

    def __init__(self, loader: Callable[..., None], rows: int, columns: int) -> None:
        """Take the loader, (parameter, tensor[, part]), that a layer of [rows, columns] has."""
        self._loader, self._rows, self._columns = loader, rows, columns

    def rows(self, count: int, part: Part) -> Tensor:
        """See `gathering.Place`: numbers are sent through the loader and read where they arrive."""
        probe = _probe((self._rows, 1), output_dim=0)
        self._load(
            probe, torch.arange(1, count + 1, device=CPU)[:, None], part
        )  # 0 stays where nothing arrives
        return probe.data[:, 0] - 1

    def columns(self, count: int, part: Part) -> tuple[int, int]:
        """See `gathering.Place`."""
        if count == self._columns:
            return 0, count
        del part  # parts lie one above the other
        probe = _probe((1, self._columns), input_dim=1)
        self._load(probe, torch.arange(count, device=CPU)[None], None)
        return int(probe.data[0, 0]), int(probe.data[0, -1]) + 1

    def _load(self, probe: nn.Parameter, numbers: Tensor, part: Part) -> None:
        if part is None:
            self._loader(probe, numbers)
        else:
            self._loader(probe, numbers, part)


def _probe(shape: tuple[int, int], **dims: int) -> nn.Parameter:
    probe = nn.Parameter(torch.zeros(shape, dtype=torch.int64, device=CPU), requires_grad=False)
    for name, value in dims.items():
        setattr(probe, name, value)
    return probe
