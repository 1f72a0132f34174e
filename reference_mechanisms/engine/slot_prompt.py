"""A piece of a prompt through a device program of fixed shape, into any slot of a cache of many.

As `prompt_step`, beside the steps of those that decode: a piece is one launch, and steps run between two.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.prompt_step import PIECE
from reference_mechanisms.engine.slot_rows import Slots
from reference_mechanisms.engine.staging import send
from reference_mechanisms.kernels.slots.packing import Packed


class SlotPrompt:
    """Buffers and program for pieces of prompts, one request's at a time."""

    def __init__(self, model: Slots, taps: Sequence[int], graphs: Graphs) -> None:
        """Record the program; the cache's scratch slot is overwritten.

        Args:
            model: the target, and its slots.
            taps: layers whose output is wanted.
            graphs: record the program.
        """
        target = model.target
        device, self._scratch = target.device, model.cache.slots - 1
        self._forward = model.rows(PIECE, PIECE, taps)
        self._ids = torch.zeros(PIECE, dtype=torch.int64, device=device)
        self._where = torch.zeros(3, dtype=torch.int64, device=device)  # slot, first position, rows
        # Of the newest piece.
        self.hidden = torch.zeros((PIECE, target.config.hidden_size), dtype=target.dtype, device=device)
        self.tapped = torch.zeros(
            (PIECE, len(taps) * target.config.hidden_size), dtype=target.dtype, device=device
        )
        self._load((), self._scratch, 0)
        self._program = graphs.program(self._run)

    def __call__(self, ids: Sequence[int], slot: int, start: int) -> None:
        """Write a piece of up to `PIECE` tokens into a slot, from a position on; the host counts them."""
        self._load(ids, slot, start)
        self._program()

    @property
    def packed(self) -> Packed:
        """Where the rows of the newest piece stand."""
        return self._forward.pack(*(self._where[n : n + 1] for n in range(3)))

    @torch.inference_mode()
    def _load(self, ids: Sequence[int], slot: int, start: int) -> None:
        send(self._ids, [*ids, *[0] * (PIECE - len(ids))])
        send(self._where, [slot, start, len(ids)])

    @torch.inference_mode()
    def _run(self) -> None:
        packed = self.packed
        forward = self._forward(self._ids, packed)
        self._forward.keep(packed, packed.counts)
        self.hidden.copy_(forward.hidden)
        if forward.taps:
            self.tapped.copy_(torch.cat(forward.taps, dim=-1))
