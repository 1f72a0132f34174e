"""What a child is really worth: measured from recorded drafts, by rank, and less behind a sibling.

A block drafter fills all positions as if its own best tokens stood in front. Behind any other token its
list is worth less, so a node's probability is the product over its path of c[depth, rank], the share of
recorded positions where the target's token had this rank with only best tokens in front, times the off-spine
multiplier for each token that stands behind one which was not the best. Source of the observation and of the
multiplier: the public findings of rmagur1203/vllm-ddtree (2026).

Ranks are counted from 0. Pure functions on recorded ranks; `Calibrated` puts the result into `growing.grow`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.verification.growing import Branching, Children

MISSED = -1  # the target's token was not among the candidates


@dataclass(frozen=True, slots=True)
class Calibration:
    """Probabilities of children by depth and rank."""

    on_spine: tuple[tuple[float, ...], ...]  # [depth][rank], behind best tokens only
    off_spine: float  # factor of a child that has another token in front

    def __post_init__(self) -> None:
        """Hold that no child is likelier than its parent.

        Raises:
            ValueError: naming the field.
        """
        if not self.on_spine or len({len(row) for row in self.on_spine}) != 1:
            raise ValueError("`on_spine` needs as many ranks at every depth, and one depth at least")
        for depth, row in enumerate(self.on_spine):
            if not row or min(row) < 0.0 or sum(row) > 1.0 + 1e-9:
                raise ValueError(f"`on_spine`[{depth}] is no part of a distribution: {row}")
        if not 0.0 <= self.off_spine <= 1.0:
            raise ValueError(f"`off_spine` is {self.off_spine}; it lies in 0..1")

    def probability(self, ranks: Sequence[int]) -> float:
        """Of a path of these ranks."""
        found, spine = 1.0, True
        for depth, rank in enumerate(ranks):
            found *= self.on_spine[depth][rank] * (1.0 if spine else self.off_spine)
            spine = spine and rank == 0
        return found

    def logarithms(self, device: torch.device) -> Logarithms:
        """As tensors on a device."""
        on, off = (
            torch.tensor(part, dtype=torch.float64, device=device).log()
            for part in (self.on_spine, self.off_spine)
        )
        return Logarithms(on, off)


class Logarithms(NamedTuple):
    """Logarithms of a calibration, float64."""

    on_spine: Tensor  # [depths, ranks]
    off_spine: Tensor  # []


def calibrate(traces: Sequence[Sequence[int]], *, depths: int, ranks: int) -> Calibration:
    """Estimate from recorded drafts.

    c is the share of each rank among the positions behind best tokens. The multiplier is the number of hits
    off the spine over the number that c expects there: unbiased once c is, and a ratio of sums needs no
    search. A depth that no record reaches on the spine has no probability: 0. Without a record off the spine,
    or where c expects nothing there, the multiplier is 0, so that no node is drafted on no evidence.

    Args:
        traces: of each draft, the rank of the target's token among the drafter's candidates behind the
            target's own tokens, position by position, `MISSED` where it is not among them. Cut at the end of
            an output; what follows a miss is not looked at, because no path leads there.
        depths: most positions.
        ranks: candidates of a position.

    Raises:
        ValueError: a rank is out of range, or there is no record.
    """
    if not any(traces):
        raise ValueError("`traces` holds no position; record drafts first")
    counts = torch.zeros(depths, ranks, dtype=torch.float64)
    seen = torch.zeros(depths, dtype=torch.float64)
    off: list[tuple[int, int]] = []
    for trace in traces:
        spine = True
        for depth, rank in enumerate(trace[:depths]):
            if not MISSED <= rank < ranks:
                raise ValueError(f"`traces`: rank {rank} is not in {MISSED}..{ranks - 1}")
            if not spine:
                off.append((depth, rank))
            else:
                seen[depth] += 1
                if rank != MISSED:
                    counts[depth, rank] += 1
            if rank == MISSED:
                break
            spine = spine and rank == 0
    shares = counts / seen.clamp_min(1.0)[:, None]
    expected = sum(float(shares[depth].sum()) for depth, _ in off)
    hits = sum(rank != MISSED for _, rank in off)
    multiplier = min(1.0, hits / expected) if expected > 0.0 else 0.0
    return Calibration(tuple(tuple(row) for row in shares.tolist()), multiplier)


class Calibrated:
    """Children as a drafter ranks them, with calibrated probabilities instead of its own."""

    def __init__(
        self, branching: Branching, calibration: Calibration, logarithms: Logarithms | None = None
    ) -> None:
        """Ask `branching` for the children; ranks and depths that were not calibrated are worth nothing.

        Args:
            branching: of a drafter.
            calibration: what its children are worth.
            logarithms: of it, on the drafter's device; None: made anew with the first level.
        """
        self._branching = branching
        self._calibration, self._logarithms = calibration, logarithms
        self._spine = torch.empty(0)  # whether the parents of the call before are on it, [requests, parents]
        self._firsts = torch.empty(0)  # their best children

    def children(self, depth: int, token_ids: Tensor, parents: Tensor) -> Children:
        """As in `growing.Branching`."""
        found = self._branching.children(depth, token_ids, parents)
        if self._logarithms is None:
            self._logarithms = self._calibration.logarithms(token_ids.device)
        (table, off), fan = self._logarithms, found.token_ids.shape[-1]
        on = table.new_full((fan,), -math.inf)
        if depth < len(table):
            known = table[depth, :fan]
            on[: len(known)] = known
        spine = torch.ones_like(token_ids, dtype=torch.bool)
        if depth:
            spine = self._spine.gather(1, parents) & (token_ids == self._firsts.gather(1, parents))
        self._spine, self._firsts = spine, found.token_ids[..., 0]
        worth = on + torch.where(spine, 0.0, off)[..., None]
        return Children(found.token_ids, worth)


def expected_tokens(path_probabilities: Sequence[float]) -> float:
    """Tokens that a verify step of a tree emits on average, its own one among them.

    Args:
        path_probabilities: of each node, that the target's own output begins with its path.
    """
    return 1.0 + sum(path_probabilities)
