"""How many drafts of each request to verify, from the drafter's confidences.

Source: confidence-scheduled verification of DSpark (DeepSeek, 2026).

At temperature above 0 the decision to verify a draft must not depend on what was drawn there, or the
output is no longer the target's. The confidence of draft j is computed from tokens in front of it, but
that of j + 1 from draft j itself. So drafts are admitted in order of survival and the search stops at the
first one that does not pay: it never looks past a draft to decide on it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Lengths = Callable[[Sequence[Sequence[float]]], list[int]]  # confidences of each request -> drafts to verify
BINS = 20  # of the calibration error
TEMPERATURES = tuple(float(t) for t in torch.logspace(-1, 1, 61, dtype=torch.float64))  # 0.1 .. 10


def survivals(confidences: Sequence[float]) -> list[float]:
    """Probability that each draft and all before it are accepted."""
    found, running = [], 1.0
    for confidence in confidences:
        running *= confidence
        found.append(running)
    return found


def most_tokens_per_second(steps_per_second: Callable[[int], float]) -> Lengths:
    """The schedule of the paper.

    Args:
        steps_per_second: verify steps a second for a number of rows, anchors included, measured.
    """

    def lengths(confidences: Sequence[Sequence[float]]) -> list[int]:
        admitted = [0] * len(confidences)
        alive = [survivals(one) for one in confidences]
        waiting = [(-one[0], request) for request, one in enumerate(alive) if one]
        heapq.heapify(waiting)
        rows, tokens = len(confidences), float(len(confidences))
        best = tokens * steps_per_second(rows)
        while waiting:
            survival, request = heapq.heappop(waiting)
            rows, tokens = rows + 1, tokens - survival
            value = tokens * steps_per_second(rows)
            if value <= best:
                break
            best = value
            admitted[request] += 1
            if admitted[request] < len(alive[request]):
                heapq.heappush(waiting, (-alive[request][admitted[request]], request))
        return admitted

    return lengths


def at_least(minimum: float) -> Lengths:
    """Verify up to the first draft whose confidence is below `minimum`."""

    def lengths(confidences: Sequence[Sequence[float]]) -> list[int]:
        return [
            next((n for n, confidence in enumerate(one) if confidence < minimum), len(one))
            for one in confidences
        ]

    return lengths


def confidences_of(logits: Tensor, temperatures: Sequence[float] = ()) -> Tensor:
    """Probabilities of logits [..., drafts], each position with its temperature; none is 1."""
    if temperatures:
        logits = logits / torch.tensor(temperatures, dtype=logits.dtype, device=logits.device)
    return logits.sigmoid()


def calibration_error(predicted: Tensor, happened: Tensor) -> float:
    """Expected calibration error over equal bins of [0, 1].

    Args:
        predicted: probabilities [samples].
        happened: bool [samples].
    """
    bins = (predicted * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, predicted.double() - happened.double())
    return float(gaps.abs().sum()) / len(predicted)


def sequential_temperatures(
    logits: Tensor, accepted: Tensor, drafted: Tensor, grid: Sequence[float] = TEMPERATURES
) -> tuple[float, ...]:
    """One temperature for each draft position, so that survivals are calibrated.

    Position after position, with the earlier ones fixed: the temperature whose running product is
    closest to how often the prefix was accepted.

    Args:
        logits: of the confidence head, [samples, drafts].
        accepted: accepted drafts of each sample.
        drafted: drafts of each sample that count; those behind an accepted stop do not.
        grid: temperatures to try; the first of equals is taken.
    """
    chosen: list[float] = []
    running = torch.ones(len(logits), dtype=torch.float64)
    for position in range(logits.shape[1]):
        counts = drafted > position
        if not bool(counts.any()):
            raise ValueError(f"no sample drafts position {position}; collect longer drafts")
        products = [running * (logits[:, position].double() / t).sigmoid() for t in grid]
        happened = accepted > position
        errors = [calibration_error(product[counts], happened[counts]) for product in products]
        best = errors.index(min(errors))
        chosen.append(grid[best])
        running = products[best]
    return tuple(chosen)
