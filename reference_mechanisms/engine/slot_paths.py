"""Accepted paths of draft trees: keys and values of all slots come together with one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.staging import send
from reference_mechanisms.kernels.slots.trees import Moved, SlotTreeKernels

Paths = Mapping[int, tuple[int, Sequence[int]]]  # of a slot: position of the anchor, and rows


class PathMover:
    """Buffers and program."""

    def __init__(self, kv: KVCache, levels: int, kernels: SlotTreeKernels, graphs: Graphs) -> None:
        """Allocate and record.

        Args:
            kv: its last slot is scratch.
            levels: of the deepest tree, at most.
            kernels: of the trees.
            graphs: record the program.
        """
        self._places, self._kernels, self._scratch = kv.places(), kernels, kv.slots - 1
        self._straight = list(range(levels + 1))
        # Slot, anchor's position and path of each seat.
        self._moved = torch.zeros((kv.slots - 1, levels + 3), dtype=torch.int64, device=kv.device)
        self._load({})
        self._program = graphs.program(self._run)

    def __call__(self, paths: Paths) -> None:
        """Bring paths together behind their anchors."""
        self._load(paths)
        self._program()

    def _load(self, paths: Paths) -> None:
        seats = [[slot, start, *path, *self._straight[len(path) :]] for slot, (start, path) in paths.items()]
        empty = [[self._scratch, 0, *self._straight]] * (self._scratch - len(seats))
        send(self._moved, [*seats, *empty])

    @torch.inference_mode()
    def _run(self) -> None:
        slots, starts, paths = self._moved[:, 0], self._moved[:, 1], self._moved[:, 2:]
        moved = Moved(slots.contiguous(), starts.contiguous(), paths.contiguous())
        self._kernels.move(self._places, moved)
