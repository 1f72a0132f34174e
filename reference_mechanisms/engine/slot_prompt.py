"""A piece of a prompt through a device program of fixed shape, into any slot of a cache of many.

As `prompt_step`, beside the steps of those that decode: a piece is one launch, and steps run between two.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.prompt_step import PIECE
from reference_mechanisms.engine.slot_rows import SlotRows
from reference_mechanisms.engine.slot_step import send
from reference_mechanisms.kernels.slots.choice import SlotKernels
from reference_mechanisms.kernels.slots.packing import Packed
from reference_mechanisms.targets.llama import LlamaTarget


class SlotPrompt:
    """Buffers and program for pieces of prompts, one request's at a time."""

    def __init__(
        self, target: LlamaTarget, cache: KVCache, taps: Sequence[int], kernels: SlotKernels, graphs: Graphs
    ) -> None:
        """Record the program; the cache's scratch slot is overwritten.

        Args:
            target: the model.
            cache: its last slot is scratch.
            taps: layers whose output is wanted.
            kernels: of a step.
            graphs: record the program.
        """
        device, self._scratch = target.device, cache.slots - 1
        self._forward = SlotRows(target, cache, rows=PIECE, most=PIECE, taps=taps, kernels=kernels)
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
        """Write a piece of up to `PIECE` tokens into a slot, from a position on; nothing is committed."""
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
        forward = self._forward(self._ids, self.packed)
        self.hidden.copy_(forward.hidden)
        if forward.taps:
            self.tapped.copy_(torch.cat(forward.taps, dim=-1))
