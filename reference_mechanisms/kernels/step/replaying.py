"""Drafts that are accepted as a recording says, in plain torch: for targets whose weights mean nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Recording(NamedTuple):
    """What a request is known to do, on the device; all int64."""

    tokens: Tensor  # [positions]: the target's own continuation, by position in the sequence
    counts: Tensor  # [steps]: draft tokens that each step shall accept
    turn: Tensor  # [1]: the step; moved on by each draft


# (draft that was made [drafts], position of the anchor [1], recording, vocabulary, out [drafts]) -> nothing
Replay = Callable[[Tensor, Tensor, Recording, int, Tensor], None]


def new_recording(positions: int, steps: int, device: torch.device) -> Recording:
    """Buffers of zeros."""
    sizes = (positions, steps, 1)
    return Recording(*(torch.zeros(size, dtype=torch.int64, device=device) for size in sizes))


def replay(made: Tensor, start: Tensor, recording: Recording, vocabulary: int, out: Tensor) -> None:
    """Draft so many right tokens as the step's count says, and wrong ones behind them.

    Args:
        made: what the drafter drafted; it has no part in the result.
        start: position of the anchor.
        recording: of the request.
        vocabulary: of the target.
        out: the draft.
    """
    index = torch.arange(len(made), device=made.device)
    places = (start + 1 + index).clamp(max=len(recording.tokens) - 1)
    count = recording.counts[recording.turn.clamp(max=len(recording.counts) - 1)]
    known = recording.tokens[places]
    out.copy_(torch.where(index < count, known, (known + 1) % vocabulary))
    recording.turn.add_(1)
