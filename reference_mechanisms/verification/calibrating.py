"""What a child is really worth: the drafter's own probability, mapped to what recorded drafts say of it.

A drafter's log-probability of a child becomes slope x log-probability + offset, by depth, and at most 0: a
map of two numbers keeps what the drafter knows of each draft apart, which a table of hit rates by rank
throws away. Behind a token that was not the best of its list a block drafter's list may be worth less, as it
was made for another text: there, a child is worth the off-spine multiplier times as much, which is measured
too. Source of the multiplier: the public findings of rmagur1203/vllm-ddtree (2026); for the shipped DFlash it
comes out as 1.

Ranks are counted from 0. Pure functions on recorded drafts; `Calibrated` puts the result into `growing.grow`.
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
SHRINK = 30.0  # strength of the map of all depths in that of one: as of so many children that were right
TRUST = 10.0  # strength of an off-spine multiplier of 1: as of so many expected hits that came
STEEPEST, FLATTEST, FARTHEST = 4.0, 0.25, 4.0  # slopes, and size of an offset, that a fit may have
ROUNDS, STEP, CLOSE = 100, 1.0, 1e-9  # of Newton's method: most rounds, longest step, change at which it ends
START = (1.0, 0.0)  # the drafter's own probability


class Judged(NamedTuple):
    """A position of a recorded draft, behind the target's own tokens."""

    log_probabilities: Tensor  # of the candidates, the best first, [candidates]
    rank: int  # of the target's token among them, or `MISSED`


class Line(NamedTuple):
    """The map of one depth."""

    slope: float
    offset: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Maps of a drafter's log-probabilities by depth."""

    lines: tuple[Line, ...]  # of each depth; behind the last one, the last
    off_spine: float  # factor of a child that has another token in front

    def __post_init__(self) -> None:
        """Hold that no child is likelier than its parent, and the order of a list is kept.

        Raises:
            ValueError: naming the field.
        """
        if not self.lines:
            raise ValueError("`lines` needs one depth at least")
        for depth, (slope, offset) in enumerate(self.lines):
            if not (0.0 < slope < math.inf and math.isfinite(offset)):
                raise ValueError(f"`lines`[{depth}]: a slope above 0 and an offset, not {slope} and {offset}")
        if not 0.0 <= self.off_spine <= 1.0:
            raise ValueError(f"`off_spine` is {self.off_spine}; it lies in 0..1")

    def numbers(self, depths: int, device: torch.device) -> Numbers:
        """As tensors on a device, for so many depths."""
        lines = [self.lines[min(depth, len(self.lines) - 1)] for depth in range(depths)]
        slopes, offsets = torch.tensor(lines, dtype=torch.float32, device=device).unbind(1)
        off = torch.tensor(self.off_spine, dtype=torch.float64, device=device).log()
        return Numbers(slopes[:, None].contiguous(), offsets[:, None].contiguous(), off)


class Numbers(NamedTuple):
    """A calibration on a device."""

    slopes: Tensor  # [depths, 1]
    offsets: Tensor  # [depths, 1]
    off_spine: Tensor  # [], logarithm, float64

    def worth(self, log_probabilities: Tensor, depths: slice) -> Tensor:
        """Of children of these depths on the spine, in fixed shapes and without a question to the device.

        Args:
            log_probabilities: as the drafter says, [depths, children] or [..., children] of one depth.
            depths: whose they are.
        """
        wide = log_probabilities.to(torch.float32)
        return torch.addcmul(self.offsets[depths], wide, self.slopes[depths]).clamp_max_(0.0)


def calibrate(traces: Sequence[Sequence[Judged]], *, depths: int) -> Calibration:
    """Fit to recorded drafts.

    A child's chance to be the target's token is taken as exp(slope x log-probability + offset), and the map
    is the most likely one for independent children: a Poisson model, which needs no sum over the vocabulary
    and makes as many hits expected as were seen. It is fitted to all depths together, then to each with that
    one in front of it as so many samples (`SHRINK`): a depth that few records reach has nearly the map of
    all, and none has a chance of 0. The off-spine multiplier is the number of hits off the spine over what
    the maps expect there, drawn towards 1 (`TRUST`), which is what the drafter says.

    Args:
        traces: of each draft, its positions one behind the other. Cut at the end of an output; what follows a
            miss is not looked at, because no path leads there.
        depths: most positions.

    Raises:
        ValueError: a rank is out of range, or there is no record.
    """
    on: list[list[Judged]] = [[] for _ in range(depths)]
    off: list[tuple[int, Judged]] = []
    for trace in traces:
        spine = True
        for depth, place in enumerate(trace[:depths]):
            if not MISSED <= place.rank < len(place.log_probabilities):
                raise ValueError(
                    f"`traces`: rank {place.rank} is not in {MISSED}..{len(place.log_probabilities) - 1}"
                )
            if spine:
                on[depth].append(place)
            else:
                off.append((depth, place))
            if place.rank == MISSED:
                break
            spine = spine and place.rank == 0
    if not any(on):
        raise ValueError("`traces` holds no position; record drafts first")
    pooled = _fitted([place for places in on for place in places], START, 1e-6)
    calibration = Calibration(tuple(_fitted(places, pooled, SHRINK) for places in on), 1.0)
    numbers = calibration.numbers(depths, torch.device("cpu"))
    expected = sum(
        float(numbers.worth(place.log_probabilities.cpu(), slice(depth, depth + 1)).exp().sum())
        for depth, place in off
    )
    hits = sum(place.rank != MISSED for _, place in off)
    return Calibration(calibration.lines, min(1.0, (hits + TRUST) / (expected + TRUST)))


def _fitted(places: Sequence[Judged], prior: tuple[float, float], strength: float) -> Line:
    """The most likely map of places on the spine, drawn towards `prior`."""
    line, drawn = torch.tensor(prior, dtype=torch.float64), torch.eye(2, dtype=torch.float64) * strength
    if not places:
        return Line(*prior)
    scores = torch.cat([place.log_probabilities.double().cpu() for place in places])
    features = torch.stack((scores, torch.ones_like(scores)), 1)[scores.isfinite()]
    right = torch.tensor(
        [float(place.log_probabilities[place.rank]) for place in places if place.rank != MISSED],
        dtype=torch.float64,
    )
    hits = torch.stack((right.sum(), torch.tensor(float(len(right)), dtype=torch.float64)))
    middle = line.clone()
    for _ in range(ROUNDS):
        rates = (features @ line).clamp_max(1.0).exp()
        slope = hits - rates @ features - drawn @ (line - middle)
        bend = (features * rates[:, None]).T @ features + drawn
        step = torch.linalg.solve(bend, slope).clamp(-STEP, STEP)
        line += step
        line[0].clamp_(FLATTEST, STEEPEST)
        line[1].clamp_(-FARTHEST, FARTHEST)
        if float(step.abs().max()) < CLOSE:
            break
    return Line(*line.tolist())


class Calibrated:
    """Children as a drafter ranks them, with calibrated probabilities instead of its own."""

    def __init__(self, branching: Branching, numbers: Numbers) -> None:
        """Ask `branching` for the children.

        Args:
            branching: of a drafter.
            numbers: what its children are worth, for as many depths as are asked for.
        """
        self._branching, self._numbers = branching, numbers
        self._spine = torch.empty(0)  # whether the parents of the call before are on it, [requests, parents]
        self._firsts = torch.empty(0)  # their best children

    def children(self, depth: int, token_ids: Tensor, parents: Tensor) -> Children:
        """As in `growing.Branching`."""
        found = self._branching.children(depth, token_ids, parents)
        on = self._numbers.worth(found.log_probabilities, slice(depth, depth + 1))
        spine = torch.ones_like(token_ids, dtype=torch.bool)
        if depth:
            spine = self._spine.gather(1, parents) & (token_ids == self._firsts.gather(1, parents))
        self._spine, self._firsts = spine, found.token_ids[..., 0]
        worth = on + torch.where(spine, 0.0, self._numbers.off_spine.to(on.dtype))[..., None]
        return Children(found.token_ids, worth)


def expected_tokens(path_probabilities: Sequence[float]) -> float:
    """Tokens that a verify step of a tree emits on average, its own one among them.

    Args:
        path_probabilities: of each node, that the target's own output begins with its path.
    """
    return 1.0 + sum(path_probabilities)
