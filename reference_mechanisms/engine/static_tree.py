"""One verify step of a draft tree as a device program of fixed shape; the chain's is in `static_step.py`.

The rows are the anchor, the nodes and padding. Which row stands behind which is a number on the device, so
that one recorded program verifies every tree of so many rows and levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.target import Forward, Target
from reference_mechanisms.kernels.step.trees import TreeKernels, TreeStand, TreeTurn, new_tree_turn
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.verification.tree import PADDING


class TreeReport(NamedTuple):
    """What the host learns of one step."""

    start: int  # position of the anchor
    drafted: int  # nodes that counted
    accepted: int  # draft tokens
    path: list[int]  # accepted rows, the anchor's first
    token_ids: list[int]  # of each row
    choices: list[int]  # argmax of each row
    finite: list[int]  # whether the largest logit of each row is a number


class TreeRows(Protocol):
    """A fixed number of rows of a tree through a target; `DenseTreeRows`, `static_hybrid.HybridTreeRows`."""

    def __call__(self, turn: TreeTurn) -> Forward:
        """Run all rows of a turn that is laid out."""
        ...

    def keep(self, turn: TreeTurn) -> None:
        """Make the accepted path of a settled turn part of what is cached."""
        ...

    def leave(self) -> None:
        """The rows that ran may be committed by the host."""
        ...


class DenseTreeRows:
    """Of a target with attention layers only."""

    def __init__(
        self, target: LlamaTarget, cache: KVCache, taps: Sequence[int], kernels: TreeKernels
    ) -> None:
        """Allocate the constants.

        Args:
            target: the model.
            cache: of one slot.
            taps: layers whose output is wanted.
            kernels: of the step.
        """
        self._target, self._taps, self._kernels = target, tuple(taps), kernels
        self._places = cache.window(0, 0, cache.capacity)
        self._rotations = target.rotations  # kept: a larger cache gives the target another table

    @torch.inference_mode()
    def __call__(self, turn: TreeTurn) -> Forward:
        """As in `TreeRows`."""
        eps = self._target.config.norm_eps
        stand = TreeStand(turn.start, turn.depths, turn.paths, self._rotations, self._places, eps)
        return self._target.run(turn.ids, self._kernels.ops(stand), self._taps)

    @torch.inference_mode()
    def keep(self, turn: TreeTurn) -> None:
        """As in `TreeRows`."""
        self._kernels.move(self._places, turn)

    def leave(self) -> None:
        """As in `TreeRows`: they lie in the cache already."""


class TreeStep:
    """Buffers and program; calling it runs one step and, if it decides, moves on by what was accepted."""

    def __init__(
        self,
        target: Target,
        forward: TreeRows,
        *,
        rows: int,
        levels: int,
        taps: Sequence[int],
        kernels: TreeKernels,
        decides: bool = True,
    ) -> None:
        """Allocate the buffers.

        Args:
            target: the model.
            forward: its rows.
            rows: of every step, the anchor's among them.
            levels: of the deepest tree.
            taps: layers whose output is wanted.
            kernels: of the step.
            decides: the accepted path is kept; else the host decides what is accepted, and commits it.
        """
        self._target, self._kernels, self._decides = target, kernels, decides
        self.forward = forward
        config, device = target.config, target.device
        self.rows, self.levels = rows, levels
        self.turn = new_tree_turn(rows, levels, device)
        self.report = self.turn.report
        # Of the newest step; a recorded one keeps them where they were recorded.
        self.logits = torch.empty((rows, config.vocab_size), dtype=target.dtype, device=device)
        self.tapped = torch.empty((rows, len(taps) * config.hidden_size), dtype=target.dtype, device=device)
        self.index = torch.arange(levels + 1, device=device)

    @torch.inference_mode()
    def __call__(self) -> None:
        """Run all rows, accept greedily, move on."""
        turn, target = self.turn, self._target
        self._kernels.lay(turn)
        forward = self.forward(turn)
        self.logits = target.logits(forward.hidden)
        if forward.taps:
            self.tapped = torch.cat(forward.taps, dim=-1)
        self._kernels.settle(self.logits, turn)
        if self._decides:
            self.forward.keep(turn)

    @torch.inference_mode()
    def load(self, token_ids: Sequence[int], parents: Sequence[int], start: int, *, limit: int) -> None:
        """Set the state.

        Args:
            token_ids: anchor and nodes; padding follows.
            parents: row in front of each, -1 for the anchor.
            start: position of the anchor.
            limit: most levels that can still be used; ends what later steps draft.
        """
        padding = self.rows - len(token_ids)
        state = (
            *token_ids, *[0] * padding, *parents, *[PADDING] * padding, start, len(token_ids) - 1, limit,
        )  # fmt: skip
        self.turn.state.copy_(torch.tensor(state))

    def read(self, numbers: Sequence[int]) -> TreeReport:
        """The host's view of `report`."""
        rows, span = self.rows, self.levels + 1
        start, drafted, accepted = numbers[:3]
        parts = numbers[3 + span :]
        ids, choices, finite = (list(parts[n * rows : (n + 1) * rows]) for n in range(3))
        return TreeReport(start, drafted, accepted, list(numbers[3 : 4 + accepted]), ids, choices, finite)

    @property
    def accepted_rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the newest step, as `drafters.protocol.DraftProgram.absorb` takes them."""
        turn = self.turn
        path = turn.path
        return self.tapped[path], turn.before + self.index, turn.choices[path], turn.accepted
