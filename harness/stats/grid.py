"""Pairs laid out as a table: one row per block of a launch, one column per unit of work.

The same prompts come back in every block of every launch, so a prompt is a column and not a
nested draw: it is resampled once for all rows. Batches are drawn anew for each pair of blocks;
then the columns are ranks (see `lay_out`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.stats.pairs import Cost, Pair

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Span = Literal["total", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Times and tokens of both arms, [rows, units]; all four are 0 where a pair was lost."""

    launch_of: Ints  # [rows] index of the row's launch, ascending from 0
    units: tuple[str, ...]  # prompt ids, or names of the batches
    prompts: int  # distinct prompts behind the units
    baseline_ns: Floats
    arm_ns: Floats
    baseline_tokens: Floats
    arm_tokens: Floats

    @property
    def launches(self) -> int:
        """Number of launches with at least one pair."""
        return int(self.launch_of[-1]) + 1

    @property
    def blocks(self) -> int:
        """Blocks of the launch that has most."""
        return int(np.bincount(self.launch_of).max())

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which cells hold a pair, [rows, units]."""
        found: npt.NDArray[np.bool_] = self.baseline_ns + self.arm_ns > 0
        return found

    @property
    def equal_tokens(self) -> bool:
        """Whether both arms emitted as many tokens in every pair."""
        return bool(np.array_equal(self.baseline_tokens, self.arm_tokens))

    def columns(self, chosen: Sequence[int]) -> Grid:
        """The same rows with some of the units."""
        index = list(chosen)
        return Grid(
            launch_of=self.launch_of,
            units=tuple(self.units[i] for i in index),
            prompts=len(index),
            baseline_ns=self.baseline_ns[:, index],
            arm_ns=self.arm_ns[:, index],
            baseline_tokens=self.baseline_tokens[:, index],
            arm_tokens=self.arm_tokens[:, index],
        )

    def masked(self, kept: Floats) -> Grid:
        """The same table without the cells where `kept` [rows, units] is 0."""
        return Grid(
            launch_of=self.launch_of,
            units=self.units,
            prompts=self.prompts,
            baseline_ns=self.baseline_ns * kept,
            arm_ns=self.arm_ns * kept,
            baseline_tokens=self.baseline_tokens * kept,
            arm_tokens=self.arm_tokens * kept,
        )


def lay_out(pairs: Sequence[Pair], span: Span = "total") -> Grid | None:
    """The table of the pairs; None when there is none.

    Single requests, and batches that are the same in every block, keep their column. Batches that
    differ between blocks have no column of their own. Resampling them inside each block would
    treat the same prompts as new ones in every block and make the interval too narrow, so column
    k takes the k-th batch of each block in the order of its influence on the ratio: resampling a
    column then moves all blocks the same way, the most they can agree. That errs to the wide side.

    Args:
        pairs: complete pairs of one arm.
        span: whole response time, or the time after the first token.
    """
    if not pairs:
        return None
    rows = sorted({(pair.launch, pair.block) for pair in pairs})
    row_of = {key: index for index, key in enumerate(rows)}
    launches = sorted({launch for launch, _ in rows})
    members = [{p.prompts for p in pairs if (p.launch, p.block) == key} for key in rows]
    by_rank = any(len(p.prompts) > 1 for p in pairs) and any(m != members[0] for m in members)
    if by_rank:
        units = [f"batch rank {k}" for k in range(max(len(m) for m in members))]
        column_of = _ranks(pairs, span)
    else:
        keys = sorted({pair.prompts for pair in pairs})
        units = [" + ".join(key) for key in keys]
        place = {key: index for index, key in enumerate(keys)}
        column_of = [place[pair.prompts] for pair in pairs]
    cells = np.zeros((4, len(rows), len(units)))
    for pair, column in zip(pairs, column_of, strict=True):
        cells[:, row_of[pair.launch, pair.block], column] = _numbers(pair, span)
    return Grid(
        launch_of=np.array([launches.index(launch) for launch, _ in rows], dtype=np.int64),
        units=tuple(units),
        prompts=len({prompt for pair in pairs for prompt in pair.prompts}),
        baseline_ns=cells[0],
        arm_ns=cells[1],
        baseline_tokens=cells[2],
        arm_tokens=cells[3],
    )


def _numbers(pair: Pair, span: Span) -> tuple[int, int, int, int]:
    def of(cost: Cost) -> tuple[int, int]:
        return (cost.total_ns, cost.tokens) if span == "total" else (cost.decode_ns, cost.decode_tokens)

    (baseline_ns, baseline_tokens), (arm_ns, arm_tokens) = of(pair.baseline), of(pair.arm)
    return baseline_ns, arm_ns, baseline_tokens, arm_tokens


def _ranks(pairs: Sequence[Pair], span: Span) -> list[int]:
    """Place of each pair among those of its block, by its influence on the log ratio."""
    numbers = np.array([_numbers(pair, span) for pair in pairs], dtype=np.float64)
    totals = numbers.sum(axis=0)
    shares = np.divide(numbers, totals, out=np.zeros_like(numbers), where=totals > 0)
    influence = shares[:, 0] - shares[:, 1] - shares[:, 2] + shares[:, 3]
    ranks = [0] * len(pairs)
    taken: dict[tuple[int, int], int] = {}
    for index in np.argsort(influence, kind="stable"):
        key = (pairs[index].launch, pairs[index].block)
        ranks[index] = taken.get(key, 0)
        taken[key] = ranks[index] + 1
    return ranks
