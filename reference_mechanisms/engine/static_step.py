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
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.kernels.step.choice import Kernels
from reference_mechanisms.kernels.step.twin import Seen, Stand
from reference_mechanisms.targets.llama import LlamaTarget


class Report(NamedTuple):
    """What the host learns of one step."""

    start: int  # position of the anchor
    drafted: int  # draft tokens that counted
    token_ids: list[int]  # anchor, draft, padding
    choices: list[int]  # argmax of each row
    finite: list[int]  # whether the largest logit of each row is a number


class VerifyStep:
    """Buffers and program; calling it runs one step and moves the state on by what it accepted."""

    def __init__(
        self,
        target: LlamaTarget,
        cache: KVCache,
        *,
        rows: int,
        drafts: int,
        taps: Sequence[int],
        kernels: Kernels,
    ) -> None:
        """Allocate the buffers.

        Args:
            target: the model.
            cache: of one slot, with room for `rows` positions behind the longest sequence.
            rows: of every step.
            drafts: most draft tokens of a step, below `rows`.
            taps: layers whose output is wanted.
            kernels: of the step.
        """
        self._target, self._taps, self._kernels, self._drafts = target, tuple(taps), kernels, drafts
        self._places = cache.window(0, 0, cache.capacity)
        self._rotations = target.rotations  # kept: a larger cache gives the target another table
        config, device = target.config, target.device
        self.rows = rows

        def numbers(count: int) -> Tensor:
            return torch.zeros(count, dtype=torch.int64, device=device)

        # State: what the step works on. The host writes it to begin, each step moves it on.
        self.state = numbers(rows + 3)
        self.ids, self.start = self.state[:rows], self.state[rows : rows + 1]
        self.drafted, self.limit = self.state[rows + 1 : rows + 2], self.state[rows + 2 :]
        # Results, for the drafter and the host.
        self.before, self.accepted, self.choices = numbers(1), numbers(1), numbers(rows)
        self.logits = torch.zeros((rows, config.vocab_size), dtype=target.dtype, device=device)
        self.tapped = torch.zeros((rows, len(taps) * config.hidden_size), dtype=target.dtype, device=device)
        self.report = numbers(3 * rows + 2)
        self.index = torch.arange(rows, device=device)

    @torch.inference_mode()
    def __call__(self) -> None:
        """Run all rows, accept greedily, move on."""
        target = self._target
        positions = self.start + self.index
        seen = Seen(torch.zeros_like(positions), positions + 1)
        stand = Stand(positions, seen, self._rotations, self._places, target.config.norm_eps)
        forward = target.run(self.ids, self._kernels.ops(stand), self._taps)
        self.logits.copy_(target.logits(forward.hidden))
        if forward.taps:
            self.tapped.copy_(torch.cat(forward.taps, dim=-1))
        torch.argmax(self.logits, dim=-1, out=self.choices)
        finite = self.logits.gather(-1, self.choices[:, None]).isfinite().squeeze(1).to(torch.int64)
        right = (self.ids[1:] == self.choices[:-1]) & (self.index[1:] <= self.drafted)
        self.accepted.copy_(right.to(torch.int64).cumprod(0).sum())
        self.report.copy_(torch.cat((self.start, self.drafted, self.ids, self.choices, finite)))
        self.before.copy_(self.start)
        moved = self.accepted + 1
        self.start.add_(moved)
        self.limit.sub_(moved)
        self.drafted.copy_(self.limit.clamp(0, self._drafts))
        self.ids[:1].copy_(self.choices.index_select(0, self.accepted))

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
