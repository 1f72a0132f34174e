"""Chooses draft tokens from scores: the best, or a draw that is reported with its distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.errors import RequestError
from reference_mechanisms.sampling import Purpose, draw, uniform

Uniform = Callable[[int, int, Purpose], float]


class Drawing(NamedTuple):
    """How one request's drafts are chosen."""

    name: str  # for error messages
    temperature: float  # 0: the best score
    key: int  # of its random numbers
    position: int  # of its first draft in the output


def best_of(scores: Tensor, ids: Tensor) -> Tensor:
    """The candidate with the best score, the first of equals: target ids [requests].

    Args:
        scores: logits [requests, candidates].
        ids: target id of each candidate, [candidates] or [requests, candidates].
    """
    return ids.expand(scores.shape).gather(1, scores.argmax(-1, keepdim=True)).squeeze(1)


class Picker:
    """Chooses the drafts of one step and keeps the distributions they were drawn from.

    The draw at a position uses a random number of its own, which has no part in the acceptance there. A
    position that is drafted again in a later step meets the same number again: harmless, because nothing
    looked at what was drawn behind a rejected draft.
    """

    def __init__(self, drawings: Sequence[Drawing], vocab_size: int, random: Uniform = uniform) -> None:
        """Choose for these requests, in this order."""
        self._drawings = drawings
        self._vocab_size = vocab_size
        self._random = random
        self._distributions: list[list[Tensor]] = [[] for _ in drawings]

    def __call__(self, index: int, scores: Tensor, ids: Tensor) -> Tensor:
        """Choose draft number `index` of every request.

        Args:
            index: place in the draft.
            scores: logits [requests, candidates].
            ids: target id of each candidate, [candidates] or [requests, candidates].

        Returns:
            Target ids [requests].
        """
        ids = ids.expand(scores.shape)
        chosen = best_of(scores, ids)
        for row, drawing in enumerate(self._drawings):
            if drawing.temperature > 0:
                chosen[row] = self._draw(row, drawing, index, scores[row], ids[row])
        return chosen

    def probabilities(self, row: int, count: int) -> Tensor | None:
        """Distributions [count, vocabulary] of a request's first drafts; None where they were not drawn."""
        if not count or not self._distributions[row]:
            return None
        return torch.stack(self._distributions[row][:count])

    def _draw(self, row: int, drawing: Drawing, index: int, scores: Tensor, ids: Tensor) -> int:
        over_candidates = (scores.double() / drawing.temperature).softmax(-1)
        distribution = over_candidates.new_zeros(self._vocab_size).scatter_(0, ids, over_candidates)
        if not bool(torch.isfinite(distribution).all()):
            raise RequestError(f"{drawing.name}: the drafter computed logits that are no numbers")
        self._distributions[row].append(distribution)
        return draw(distribution, self._random(drawing.key, drawing.position + index, "draft"))
