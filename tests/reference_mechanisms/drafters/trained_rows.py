"""The forward of training on one sequence, as tests ask for it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.drafters.dflash import DFlash, Head
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.training.forwards import Batch, block_hidden, chain_rows


def block_states(network: DFlash, taps: Tensor, embeddings: Tensor, anchors: Tensor) -> Tensor:
    """Final states [blocks, rows, hidden] of blocks with these embeddings at these positions."""
    tokens = torch.zeros(1, len(taps) + 1, dtype=torch.int64)
    batch = Batch(tokens, taps[None], anchors[None])
    return block_hidden(network, batch, embeddings.shape[1], lambda _ids: embeddings)[0]


def chain_states(network: Eagle3, taps: Tensor, tokens: Tensor, steps: int, embed: Head) -> Tensor:
    """Inputs of the head [steps, positions, hidden] of chains forced along `tokens` behind every position."""
    anchors = torch.arange(1, len(taps) + 1)
    batch = Batch(tokens[None, : len(taps) + 1], F.pad(taps, (0, 0, 0, 1))[None], anchors[None])
    rows = chain_rows(network, batch, steps, embed, lambda step, _rows: tokens[anchors + 1 + step][None])
    return rows[0].transpose(0, 1)
