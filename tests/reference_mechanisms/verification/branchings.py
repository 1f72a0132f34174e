"""Drafters for tests of trees: a table of what may follow what."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from reference_mechanisms.verification.growing import Children

Path = tuple[int, ...]


class PathTable:
    """Children that depend on the whole path; knows every request's paths from `parents` alone."""

    def __init__(self, log_probabilities: Callable[[int, Path], Tensor], fan: int) -> None:
        """Take (request, draft tokens in front) -> log-probabilities [vocabulary]."""
        self.table, self.fan = log_probabilities, fan
        self.paths: list[list[Path]] = []
        self.asked: list[int] = []  # parents of each call

    def children(self, depth: int, token_ids: Tensor, parents: Tensor) -> Children:
        self.asked.append(token_ids.shape[1])
        if depth == 0:
            self.paths = [[()] for _ in token_ids]
        else:
            self.paths = [
                [(*before[parent], token) for parent, token in zip(up, ids, strict=True)]
                for before, up, ids in zip(self.paths, parents.tolist(), token_ids.tolist(), strict=True)
            ]
        rows = torch.stack(
            [torch.stack([self.table(n, path) for path in paths]) for n, paths in enumerate(self.paths)]
        )
        best = rows.sort(dim=-1, descending=True, stable=True)
        return Children(best.indices[..., : self.fan], best.values[..., : self.fan])


def random_table(seed: int, vocab: int, *, grid: int = 0) -> Callable[[int, Path], Tensor]:
    """Random distributions, another one behind each path; with a grid, full of ties."""

    def found(request: int, path: Path) -> Tensor:
        made = torch.Generator().manual_seed(hash((seed, request, path)) % 2**31)
        scores = torch.randn(vocab, generator=made, dtype=torch.float64)
        return (scores * grid).round().div(grid).log_softmax(-1) if grid else scores.log_softmax(-1)

    return found


def every_path(
    table: Callable[[int, Path], Tensor], request: int, vocab: int, depth: int
) -> dict[Path, float]:
    """Log-probability of every path of 1 to `depth` tokens, by enumeration."""
    found: dict[Path, float] = {(): 0.0}
    for length in range(1, depth + 1):
        for path in itertools.product(range(vocab), repeat=length):
            found[path] = found[path[:-1]] + float(table(request, path[:-1])[path[-1]])
    del found[()]
    return found
