"""One verify step of one request as a device program of fixed shape: nothing in it asks the host.

The rows are the anchor, the draft, and padding up to a fixed count; where they stand is a number on
the device. So every step of every arm has the same shapes and runs the same kernels, whatever it
drafts and accepts, and a row's bits hang on its own tokens and position alone. What is written for a
row that is not kept lies behind the new length: it is masked, and overwritten by the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from reference_mechanisms.engine.static_rows import ChainRows
from reference_mechanisms.engine.target import Target
from reference_mechanisms.kernels.step.choice import Kernels
from reference_mechanisms.kernels.step.settling import new_turn


class Report(NamedTuple):
    """What the host learns of one request's part in a step."""

    start: int  # position of the anchor
    drafted: int  # draft tokens that counted
    token_ids: list[int]  # anchor, draft, padding
    choices: list[int]  # argmax of each row
    finite: list[int]  # whether the largest logit of each row is a number


class VerifyStep:
    """Buffers and program; calling it runs one step and moves the state on by what it accepted."""

    def __init__(
        self,
        target: Target,
        forward: ChainRows,
        *,
        rows: int,
        drafts: int,
        taps: Sequence[int],
        kernels: Kernels,
        decides: bool = True,
    ) -> None:
        """Allocate the buffers.

        Args:
            target: the model.
            forward: its rows.
            rows: of every step.
            drafts: most draft tokens of a step, below `rows`.
            taps: layers whose output is wanted.
            kernels: of the step.
            decides: what is accepted is kept; else the host decides and commits.
        """
        self._target, self._settle, self._drafts = target, kernels.settle, drafts
        self.forward, self._decides = forward, decides
        config, device = target.config, target.device
        self.rows = rows

        # What the step works on and what it leaves; the host writes the state to begin, steps move it on.
        self._turn = new_turn(1, rows, device)
        self.state, self.report = self._turn.state[0], self._turn.report[0]
        self.choices = self._turn.choices[0]
        self.before, self.accepted = self._turn.before, self._turn.accepted
        self.ids, self.start = self.state[:rows], self.state[rows : rows + 1]
        # Of the newest step; a recorded one keeps them where they were recorded.
        self.logits = torch.empty((rows, config.vocab_size), dtype=target.dtype, device=device)
        self.tapped = torch.empty((rows, len(taps) * config.hidden_size), dtype=target.dtype, device=device)
        self.index = torch.arange(rows, device=device)

    @torch.inference_mode()
    def __call__(self) -> None:
        """Run all rows, accept greedily, move on."""
        forward = self.forward(self.ids, self.start)
        self.logits = self._target.logits(forward.hidden)
        if forward.taps:
            self.tapped = torch.cat(forward.taps, dim=-1)
        self._settle(self.logits, self._turn, self._drafts)
        if self._decides:
            self.forward.keep(self.accepted)

    @torch.inference_mode()
    def load(self, token_ids: Sequence[int], start: int, *, drafted: int, limit: int) -> None:
        """Set the state.

        Args:
            token_ids: anchor and draft; padding follows.
            start: position of the anchor.
            drafted: tokens of the draft that count in the next step.
            limit: most draft tokens that can still be used; ends what later steps draft.
        """
        padding = [0] * (self.rows - len(token_ids))
        self.state.copy_(torch.tensor([*token_ids, *padding, start, drafted, limit]))

    def read(self, numbers: Sequence[int]) -> Report:
        """The host's view of `report`."""
        rows = self.rows
        ids, choices, finite = (list(numbers[2 + n * rows : 2 + (n + 1) * rows]) for n in range(3))
        return Report(numbers[0], numbers[1], ids, choices, finite)
