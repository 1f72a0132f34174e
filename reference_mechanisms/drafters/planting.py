"""Drafters with weights as device programs that plant trees: for single greedy requests, in CUDA graphs.

The networks and caches are those of the programs for chains; what differs is what is made of their scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.blocks import attend
from reference_mechanisms.drafters.dflash import DFlash, Head
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.fused_block import FusedBlock, Weights
from reference_mechanisms.drafters.fusing import fusable, network_weights
from reference_mechanisms.drafters.levels import LEVEL_WIDTH
from reference_mechanisms.drafters.protocol import TreeProgram
from reference_mechanisms.drafters.static import BlockProgram, ChainProgram
from reference_mechanisms.kernels.step.choice import kernels_for
from reference_mechanisms.kernels.step.tree_choice import tree_kernels_for
from reference_mechanisms.kernels.step.trees import Seeds, TreeKernels, TreeTurn, put
from reference_mechanisms.kernels.step.twin import write
from reference_mechanisms.verification.calibrating import Calibrated, Calibration, Numbers
from reference_mechanisms.verification.growing import (
    Branching,
    Children,
    Growth,
    best_children,
    grow_levels,
)


class Planting(NamedTuple):
    """What trees to plant."""

    levels: int
    nodes: int  # at most, the anchor not among them
    calibration: Calibration | None  # what children are worth; None: what the drafter says


def planter_of(
    network: DFlash | Eagle3, ends: tuple[Head, Head], planting: Planting, positions: int
) -> TreeProgram:
    """The program of a loaded network.

    Args:
        network: on its device.
        ends: embedding and head.
        planting: what trees.
        positions: most that are absorbed or drafted from.
    """
    if isinstance(network, Eagle3):
        return LevelTreeProgram(network, ends, planting, positions)
    if fusable(network):
        return FusedTreeBlock(network_weights(network), ends, planting, positions)
    return BlockTreeProgram(network, ends, planting, positions)


class _Worth:
    """Puts calibrated probabilities in place of a drafter's own, if there are any."""

    def __init__(self, planting: Planting, device: torch.device) -> None:
        made = planting.calibration
        self._numbers = None if made is None else made.numbers(planting.levels, device)

    def __call__(self, branching: Branching) -> Branching:
        """For one tree."""
        return branching if self._numbers is None else Calibrated(branching, self._numbers)


class Listing:
    """Trees of one list of children for each level: what a plain DFlash drafts."""

    def __init__(
        self, planting: Planting, vocabulary: int, kernels: TreeKernels, device: torch.device
    ) -> None:
        """Plant with these kernels.

        Args:
            planting: what trees.
            vocabulary: candidates of a position.
            kernels: of the step.
            device: of the logits.
        """
        self._nodes, self._count = planting.nodes, min(planting.nodes, vocabulary)
        self._kernels = kernels
        self._off = torch.zeros(1, dtype=torch.float64, device=device)
        self._numbers: Numbers | None = None
        if planting.calibration is not None:
            self._numbers = planting.calibration.numbers(planting.levels, device)
            self._off.fill_(self._numbers.off_spine)

    def __call__(self, logits: Tensor, target_ids: Tensor | None, turn: TreeTurn) -> None:
        """Plant.

        Args:
            logits: of the levels, [levels, candidates].
            target_ids: of each candidate; None: itself.
            turn: takes the tree.
        """
        ids, worth = self._kernels.candidates(logits, self._count)
        ids = ids if target_ids is None else target_ids[ids]
        if self._numbers is not None:
            worth = self._numbers.worth(worth, slice(None))
        self._kernels.plant(Seeds(ids, worth, self._off), self._nodes, turn)


class BlockTreeProgram(BlockProgram):
    """DFlash, DFlash 2 and DSpark; `protocol.TreeProgram`."""

    def __init__(
        self,
        model: DFlash,
        ends: tuple[Head, Head],
        planting: Planting,
        positions: int,
    ) -> None:
        """Plant with `model`; arguments as of `planter_of`."""
        super().__init__(model, *ends, planting.levels, positions)
        config, device = model.config, model.fc.weight.device
        self._nodes, self._worth = planting.nodes, _Worth(planting, device)
        kernels = kernels_for(device, model.fc.weight.dtype, config.sizes.head_dim)
        self._listing: Listing | None = None
        if type(model) is DFlash:
            vocabulary = config.draft_vocab_size or config.vocab_size
            self._listing = Listing(planting, vocabulary, tree_kernels_for(kernels), device)

    @torch.inference_mode()
    def plant(self, turn: TreeTurn) -> None:
        """As in `protocol.TreeProgram`."""
        predicting = self._predicting(turn.ids[:1], turn.start)
        if self._listing is not None:
            self._listing(self._head(predicting)[0], self._model.target_ids(turn.state.device), turn)
            return
        branching = self._model.branching(predicting, self._head, self._nodes)
        _grown_into(turn, self._worth(branching), Growth(self._nodes, self.drafts, None))


class FusedTreeBlock(FusedBlock):
    """A plain DFlash in few kernels; `protocol.TreeProgram`."""

    def __init__(self, weights: Weights, ends: tuple[Head, Head], planting: Planting, positions: int) -> None:
        """Plant with these weights; the others as of `planter_of`."""
        super().__init__(weights, *ends, planting.levels, positions)
        kernels = tree_kernels_for(self._kernels)
        self._listing = Listing(planting, weights.config.vocab_size, kernels, weights.device)

    @torch.inference_mode()
    def plant(self, turn: TreeTurn) -> None:
        """As in `protocol.TreeProgram`."""
        self._listing(self.scores(turn.ids[:1], turn.start), None, turn)


class LevelTreeProgram(ChainProgram):
    """EAGLE-3, a forward for each level; `protocol.TreeProgram`."""

    def __init__(
        self,
        model: Eagle3,
        ends: tuple[Head, Head],
        planting: Planting,
        positions: int,
    ) -> None:
        """Plant with `model`; arguments as of `planter_of`."""
        super().__init__(model, *ends, planting.levels, positions + planting.levels * LEVEL_WIDTH)
        self._nodes, self._worth = planting.nodes, _Worth(planting, model.fc.weight.device)

    @torch.inference_mode()
    def plant(self, turn: TreeTurn) -> None:
        """As in `protocol.TreeProgram`."""
        branching = _StaticLevels(
            self._model, self._embed, self._head, self._places.layers, self._newest, turn.start, self._nodes
        )
        _grown_into(turn, self._worth(branching), Growth(self._nodes, self.drafts, LEVEL_WIDTH))


def _grown_into(turn: TreeTurn, branching: Branching, growth: Growth) -> None:
    grown = grow_levels(branching, turn.ids[:1], growth, turn.limit[None])
    put(grown.token_ids[0], grown.parents[0], turn)


class _StaticLevels:
    """`levels.LevelForwards` of one request over a cache whose length is a number on the device."""

    def __init__(
        self,
        model: Eagle3,
        embed: Head,
        head: Head,
        places: Sequence[Tensor],
        newest: Tensor,
        start: Tensor,
        count: int,
    ) -> None:
        self._model, self._embed, self._head, self._count = model, embed, head, count
        self._places, self._start = places, start
        self._ids = model.target_ids(newest.device)
        self._outputs = newest[:, None]
        self._seen = torch.zeros(1, 0, dtype=torch.bool, device=newest.device)
        self._column = torch.arange(places[0].shape[1], device=newest.device)

    def children(self, depth: int, token_ids: Tensor, parents: Tensor) -> Children:
        """As in `growing.Branching`."""
        if depth:
            self._outputs = self._level(depth, token_ids, parents[0])
        scores = self._head(self._model.normed(self._outputs)).float().log_softmax(-1)
        return best_children(scores, self._ids, self._count)

    def _level(self, depth: int, token_ids: Tensor, parents: Tensor) -> Tensor:
        """Output rows of the nodes of a level, [1, nodes, hidden]."""
        nodes = token_ids.shape[1]
        features = self._model.handed_on(self._outputs)[:, parents]
        own = torch.eye(nodes, dtype=torch.bool, device=parents.device)
        first = self._seen.shape[1]
        self._seen = torch.cat((self._seen[parents], own), dim=-1)
        slots = self._start + first + torch.arange(nodes, device=parents.device)
        # A node sees what is committed, and of the tree's nodes behind it its ancestors and itself.
        behind = (self._column - self._start).clamp(0, self._seen.shape[1] - 1)
        drafted = (self._column >= self._start) & (self._column < self._start + self._seen.shape[1])
        mask = (self._column < self._start) | (drafted & self._seen[:, behind])

        def attention(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            place = self._places[layer]
            write(place, slots, torch.cat((keys, values), dim=-2)[0])
            seen_keys, seen_values = place.chunk(2)
            return attend(queries[0], seen_keys, seen_values, mask)[None]

        positions = (self._start + (depth - 1)).expand(1, nodes)
        outputs: Tensor = self._model(features, self._embed(token_ids), positions, attention)
        return outputs
