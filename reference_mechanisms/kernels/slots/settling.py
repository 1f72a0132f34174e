"""The end of a step of many requests: choices, acceptance, and the state of the next step.

As `kernels.step.settling`, for requests whose rows are packed: each has as many as it drafted.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.kernels.slots.packing import Packed


class Turns(NamedTuple):
    """State of the seats of a step, int64; as a row of `kernels.step.settling.Turn.state`."""

    ids: Tensor  # [seats, most]: anchor and draft
    start: Tensor  # [seats]: position of the anchor
    drafted: Tensor  # [seats]: draft tokens that count
    limit: Tensor  # [seats]: most that can still be used


class Settled(NamedTuple):
    """What a step left."""

    accepted: Tensor  # [seats]: draft tokens
    report: Tensor  # [seats, 3 x most + 2]: position, drafted, tokens, choices, whether logits are numbers
    state: Tensor  # [seats, most + 3]: of the next step


def turns_of(state: Tensor) -> Turns:
    """Rows [seats, most + 3] of states, as parts."""
    most = state.shape[1] - 3
    return Turns(state[:, :most], state[:, most], state[:, most + 1], state[:, most + 2])


def settle(turns: Turns, packed: Packed, choices: Tensor, finite: Tensor, drafts: int) -> Settled:
    """Accept greedily and move on; seats without rows stay as they are.

    Args:
        turns: of the seats.
        packed: their rows.
        choices: argmax of each row, the first of equals, [rows].
        finite: whether the largest logit of each row is a number, 0 or 1, [rows].
        drafts: most draft tokens of the next step.
    """
    ids, most = turns.ids, turns.ids.shape[1]
    index = torch.arange(most, device=ids.device)
    rows = (packed.first[:, None] + index).clamp(max=len(choices) - 1)
    chosen, numbers = choices[rows], finite[rows]
    right = (ids[:, 1:] == chosen[:, :-1]) & (index[1:] <= turns.drafted[:, None])
    accepted = right.to(torch.int64).cumprod(1).sum(1)
    report = torch.cat((turns.start[:, None], turns.drafted[:, None], ids, chosen, numbers), dim=1)
    moved = torch.where(packed.counts > 0, accepted + 1, 0)
    limit = turns.limit - moved
    anchor = torch.where(packed.counts > 0, chosen.gather(1, accepted[:, None])[:, 0], ids[:, 0])
    parts = (anchor[:, None], ids[:, 1:], (turns.start + moved)[:, None])
    state = torch.cat((*parts, limit.clamp(0, drafts)[:, None], limit[:, None]), dim=1)
    return Settled(accepted, report, state)
