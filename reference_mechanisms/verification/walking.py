"""The accept walk of a greedy tree, and what keeps its path in the cache: tensors only, of fixed shape.

Nothing here asks the device anything, so both can stand in a CUDA graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Walk(NamedTuple):
    """What greedy verification keeps of each tree."""

    path: Tensor  # accepted rows, the anchor's 0 first, [requests, 1 + levels]; the last one repeats behind
    counts: Tensor  # accepted draft tokens, [requests]
    bonus: Tensor  # the target's own token behind them, [requests]


def greedy_walk(token_ids: Tensor, parents: Tensor, choices: Tensor, levels: int) -> Walk:
    """Follow the target's choices from the anchor down, as long as a child carries the choice.

    Args:
        token_ids: of the nodes, [requests, nodes]; at least one, padding if need be.
        parents: as in `tree.DraftTree`, [requests, nodes]; `tree.PADDING` for what is no node.
        choices: the target's own token behind each row, [requests, 1 + nodes], the anchor's first.
        levels: of the deepest tree, at most.
    """
    rows = parents + 1  # of the parents
    at = torch.zeros_like(choices[:, :1])
    path, counts = [at], torch.zeros_like(at)
    nodes = torch.arange(1, 1 + token_ids.shape[1], device=token_ids.device)
    for _ in range(levels):
        fits = (rows == at) & (token_ids == choices.gather(1, at))
        step = torch.where(fits, nodes, 0).amax(1, keepdim=True)  # siblings are different tokens: one fits
        counts = counts + (step > 0)
        at = torch.where(step > 0, step, at)
        path.append(at)
    return Walk(torch.cat(path, 1), counts[:, 0], choices.gather(1, at)[:, 0])


def compact(place: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """Move cached positions in place; everything is read before anything is written.

    Args:
        place: keys or values, positions second to last, [..., positions, head_dim].
        sources: [rows], int64.
        destinations: [rows], int64, all different; they may be among the sources.
    """
    place.index_copy_(-2, destinations, place.index_select(-2, sources))
