"""The end of a verify step, in plain torch: choices, acceptance, and the state of the next step.

Nothing here asks the host. The state of a request is one row of whole numbers: the tokens of its rows
(anchor, draft, padding), the position of the anchor, how many draft tokens count, and how many can still
be used at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Turn(NamedTuple):
    """Buffers of the requests of a step, all int64; a step moves `state` on and fills the others."""

    state: Tensor  # [requests, rows + 3]
    choices: Tensor  # [requests, rows]: argmax of each row, the first of equals
    before: Tensor  # [requests]: position of the anchor in front of the step
    accepted: Tensor  # [requests]: draft tokens
    report: Tensor  # [requests, 3 x rows + 2]: position, drafted, tokens, choices, whether logits are numbers

    @property
    def rows(self) -> int:
        """Of a request."""
        return self.choices.shape[1]


# (logits [requests x rows, vocabulary], turn, most draft tokens of the next step) -> nothing
Settle = Callable[[Tensor, Turn, int], None]


def new_turn(requests: int, rows: int, device: torch.device) -> Turn:
    """Buffers of zeros."""

    def numbers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    return Turn(
        numbers(requests, rows + 3),
        numbers(requests, rows),
        numbers(requests),
        numbers(requests),
        numbers(requests, 3 * rows + 2),
    )


def settle(logits: Tensor, turn: Turn, drafts: int) -> None:
    """Accept greedily and move on.

    Args:
        logits: [requests x rows, vocabulary].
        turn: buffers.
        drafts: most draft tokens of the next step.
    """
    state, rows = turn.state, turn.rows
    ids, start = state[:, :rows], state[:, rows : rows + 1]
    drafted, limit = state[:, rows + 1 : rows + 2], state[:, rows + 2 :]
    index = torch.arange(1, rows, device=state.device)
    choices = logits.argmax(-1)
    finite = logits.gather(-1, choices[:, None]).isfinite().to(torch.int64).view(-1, rows)
    turn.choices.copy_(choices.view(-1, rows))
    right = (ids[:, 1:] == turn.choices[:, :-1]) & (index <= drafted)
    turn.accepted.copy_(right.to(torch.int64).cumprod(1).sum(1))
    turn.report.copy_(torch.cat((start, drafted, ids, turn.choices, finite), dim=1))
    turn.before.copy_(start.squeeze(1))
    moved = turn.accepted[:, None] + 1
    start.add_(moved)
    limit.sub_(moved)
    drafted.copy_(limit.clamp(0, drafts))
    ids[:, :1].copy_(turn.choices.gather(1, turn.accepted[:, None]))
