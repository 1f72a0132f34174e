"""A fixed number of rows of one request through a target, at a position that only the device knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.target import Forward
from reference_mechanisms.kernels.step.choice import Kernels
from reference_mechanisms.kernels.step.twin import Seen, Stand, new_tickets
from reference_mechanisms.targets.llama import LlamaTarget


class ChainRows(Protocol):
    """Rows one behind the other through a target; `StaticRows`, `static_hybrid.HybridChainRows`."""

    def __call__(self, ids: Tensor, start: Tensor) -> Forward:
        """Run all rows; arguments as of `StaticRows`."""
        ...

    def keep(self, accepted: Tensor) -> None:
        """Make the anchor and so many rows behind it [1] part of what is cached."""
        ...

    def leave(self) -> None:
        """The rows that ran may be committed by the host."""
        ...


class StaticRows:
    """Each row sees all positions up to its own; keys and values are written as it runs."""

    def __init__(
        self, target: LlamaTarget, cache: KVCache, rows: int, taps: Sequence[int], kernels: Kernels
    ) -> None:
        """Allocate the constants.

        Args:
            target: the model.
            cache: of one slot, with room for `rows` positions behind the longest sequence.
            rows: at once.
            taps: layers whose output is wanted.
            kernels: of the forward.
        """
        self._target, self._taps, self._kernels = target, tuple(taps), kernels
        self._places = cache.window(0, 0, cache.capacity)
        self._rotations = target.rotations  # kept: a larger cache gives the target another table
        self._behind = torch.arange(rows + 1, device=target.device)
        self._low = torch.zeros(rows, dtype=torch.int64, device=target.device)
        self._tickets = new_tickets(rows, target.config.kv_heads, target.device)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, start: Tensor) -> Forward:
        """Run all rows.

        Args:
            ids: token ids [rows].
            start: position of the first [1].
        """
        target, places = self._target, start + self._behind
        seen = Seen(self._low, places[1:])
        eps = target.config.norm_eps
        stand = Stand(places[:-1], seen, self._rotations, self._places, eps, self._tickets)
        return target.run(ids, self._kernels.ops(stand), self._taps)

    def keep(self, accepted: Tensor) -> None:
        """As in `ChainRows`: they lie in the cache already."""

    def leave(self) -> None:
        """As in `ChainRows`."""
