"""How a step's rows are run on the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from reference_mechanisms.engine.rows import Rows
from reference_mechanisms.engine.target import Cache, Target
from reference_mechanisms.engine.turns import side_by_side


class Ran(NamedTuple):
    """What a forward leaves beside the cache; on a device it may still be under way."""

    logits: Tensor  # [rows, vocabulary]
    choices: Tensor  # argmax of each, lowest id on ties, int64 [rows]
    finite: Tensor  # whether the largest logit of each row is a number, bool [rows]
    tapped: Tensor  # [rows, taps x hidden]


class Runner(Protocol):
    """Runs packed rows of many requests behind what its cache holds."""

    @property
    def cache(self) -> Cache:
        """Of all slots."""
        ...

    @property
    def about(self) -> str:
        """One line for the report."""
        ...

    @property
    def device(self) -> torch.device:
        """That it runs on."""
        ...

    def run(self, rows: Rows, taps: Sequence[int]) -> Ran:
        """Run rows of a verify step; nothing is committed, and nothing is asked of the device."""
        ...

    def prefill(self, rows: Rows, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Run prompt rows of one request.

        Returns:
            Logits [1, vocabulary] behind the last row, and the tapped states of all.
        """
        ...


class PackedRunner:
    """Rows as many as they are, through `Target.forward`: every target, chains and trees.

    A row is bitwise the row that its request would have alone wherever the target's rows do not notice
    each other, which the probe tells. A recurrent target keeps every step's states for the commit, also
    those of a step without drafts, so that all its steps take one way.
    """

    def __init__(self, target: Target, slots: int, positions: int) -> None:
        """Allocate the cache.

        Args:
            target: the model.
            slots: requests at a time.
            positions: of each, with room for the rows of a step.
        """
        self._target = target
        self.cache: Any = target.new_cache(slots, positions)
        self.about = "as many rows as needed"
        self.device = target.device

    def run(self, rows: Rows, taps: Sequence[int]) -> Ran:
        """See `Runner`."""
        forward = self._target.forward(rows, self.cache, taps)
        logits = self._target.logits(forward.hidden)
        choices = logits.argmax(-1)
        finite = logits.gather(-1, choices[:, None]).isfinite().squeeze(-1)
        return Ran(logits, choices, finite, side_by_side(forward))

    def prefill(self, rows: Rows, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Runner`."""
        forward = self._target.forward(rows, self.cache, taps)
        return self._target.logits(forward.hidden[-1:]), side_by_side(forward)
