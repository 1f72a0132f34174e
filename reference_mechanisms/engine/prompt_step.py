"""A prompt through a device program of fixed shape: as many rows at a time as the kernels take at once.

Launched one by one, the kernels of a short prompt cost the host more time than the device. The last piece is
padded; what padding writes lies behind the prompt, where it is masked and overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.static_rows import ChainRows
from reference_mechanisms.engine.target import Cache, Target

PIECE = 64  # rows; what the streaming products take at once


class PromptStep:
    """Buffers and program for the prompts of one request at a time."""

    def __init__(self, target: Target, cache: Cache, forward: ChainRows, graphs: Graphs) -> None:
        """Record the program; the cache may hold no sequence meanwhile.

        Args:
            target: the model.
            cache: of one slot, with room for `PIECE` positions behind the longest prompt.
            forward: `PIECE` rows of the target on this cache.
            graphs: record the program.
        """
        self._target, self._cache = target, cache
        self._forward = forward
        self._state = torch.zeros(PIECE + 1, dtype=torch.int64, device=target.device)  # ids, first position
        # Of the newest piece; a recorded program keeps them where they were recorded.
        self._hidden = torch.empty(0)
        self._tapped = torch.empty((PIECE, 0), dtype=target.dtype, device=target.device)
        self._program = graphs.program(self._run)

    def __call__(self, prompt: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Cache a prompt and commit it.

        Args:
            prompt: token ids, at least one.

        Returns:
            Logits [1, vocabulary] behind its last token, and tapped states [positions, taps x hidden].
        """
        cache, last, tapped = self._cache, 0, []
        cache.clear(0)
        for start in range(0, len(prompt), PIECE):
            ids = prompt[start : start + PIECE]
            padding = [0] * (PIECE - len(ids))
            self._state.copy_(torch.tensor([*ids, *padding, start]))
            self._program()
            tapped.append(self._tapped[: len(ids)].clone())
            last = len(ids)
            self._forward.leave()
            cache.commit(0, last)
        logits = self._target.logits(self._hidden[last - 1 : last].clone())
        return logits, torch.cat(tapped)

    @torch.inference_mode()
    def _run(self) -> None:
        """All rows of a piece, at the position that the device knows."""
        forward = self._forward(self._state[:PIECE], self._state[PIECE:])
        self._hidden = forward.hidden
        if forward.taps:
            self._tapped = torch.cat(forward.taps, dim=-1)
