"""What steps cost, measured: the table that every scheduling decision reads, and its file.

Costs are a staircase: a step runs in the cheapest recorded shape (bucket) that holds its requests and rows,
and costs what that bucket costs. So a decision is worth looking at only where a bucket is used in full, and
without a table nothing may be trimmed: a flat one makes every row look free.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from reference_mechanisms.errors import MechanismError
from reference_mechanisms.verification.figures_file import FiguresFile, hold_setup


class Ground(NamedTuple):
    """What a table must have been measured on to be used; fields as in `Setup`.

    Not the drafter: its share of a step is small, and a table serves arms that differ in it.
    """

    target_sha256: str
    device: str
    dtype: str
    weights_format: str


class CostError(MechanismError):
    """A table of costs cannot be used: the message names the field and how to mend it."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class VerifyCost:
    """One shape of a verify step; the table's buckets, or a shape between two of them."""

    requests: int  # most requests of the step
    rows: int  # rows of all requests together, anchors among them
    milliseconds: float
    quartiles_ms: tuple[float, float] | None = None  # of those whose median is `milliseconds`; None: not told


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class DraftCost:
    """Drafting for so many requests."""

    requests: int
    drafts: int  # draft tokens, or levels, of each request
    milliseconds: float
    quartiles_ms: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class OverlapCost:
    """A verify step of one cohort with the drafting of another at its side, until both are done."""

    requests: int  # of each cohort
    rows: int  # of the verify step
    drafts: int
    milliseconds: float
    quartiles_ms: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PrefillCost:
    """A forward of prompt rows by itself."""

    rows: int
    milliseconds: float
    quartiles_ms: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a table was measured on; it holds nowhere else."""

    target: str
    target_sha256: str
    drafter: str
    drafter_sha256: str
    device: str
    dtype: str
    weights_format: str
    context: int  # cached positions of each request while measuring
    graphs: bool
    repeats: int  # of which the median is kept
    measured: str  # date, UTC


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """Measured milliseconds of steps. Orders do not matter; every shape stands once."""

    verify: tuple[VerifyCost, ...]  # the buckets
    draft: tuple[DraftCost, ...] = ()  # none: drafting costs nothing, as for drafters without a network
    prefill: tuple[PrefillCost, ...] = ()
    overlap: tuple[OverlapCost, ...] = ()  # none: overlap was not measured, and is not planned
    between: tuple[VerifyCost, ...] = ()  # shapes recorded unpadded, to tell what padding costs
    catch_up_ms: float = 0.0  # of a request whose drafter takes in what it missed while it was off
    step_ms: float = 0.0  # of everything in a step that hangs on nothing

    def __post_init__(self) -> None:
        """Hold that there are prices, and that more never costs less than nothing.

        Raises:
            CostError: naming the field.
        """
        if not self.verify:
            raise CostError(
                "`verify` has no entry: without measured costs every row looks free; measure them"
            )
        for field in ("verify", "draft", "prefill", "overlap", "between"):
            entries: Sequence[VerifyCost | DraftCost | PrefillCost | OverlapCost] = getattr(self, field)
            shapes = [_shape(one) for one in entries]
            if len(set(shapes)) != len(shapes):
                twice = next(shape for shape in shapes if shapes.count(shape) > 1)
                raise CostError(f"`{field}` has the shape {twice} twice; keep one")
            for one, shape in zip(entries, shapes, strict=True):
                if min(shape) < 1 or not one.milliseconds > 0.0:
                    raise CostError(f"`{field}`: {shape} costs {one.milliseconds} ms; all must be above 0")
        if any(one.rows < one.requests for one in self.verify):
            raise CostError("`verify`: a bucket has at least one row for each of its requests")
        if self.catch_up_ms < 0.0 or self.step_ms < 0.0:
            raise CostError("`catch_up_ms` and `step_ms` are at least 0")

    @functools.cached_property
    def _stairs(self) -> dict[int, list[VerifyCost]]:
        return {}

    def edges(self, requests: int) -> list[VerifyCost]:
        """Buckets that are worth using for so many requests, by rows; none costs more than a larger one."""
        if requests not in self._stairs:
            fitting = sorted(
                (one for one in self.verify if one.requests >= requests and one.rows >= requests),
                key=lambda one: (-one.rows, one.milliseconds, one.requests),
            )
            found: list[VerifyCost] = []
            for one in fitting:
                cheaper = not found or one.milliseconds <= found[-1].milliseconds
                if cheaper and (not found or one.rows < found[-1].rows):
                    found.append(one)
            self._stairs[requests] = found[::-1]
        return self._stairs[requests]

    def bucket(self, requests: int, rows: int) -> VerifyCost | None:
        """The cheapest bucket that holds so much; of equals the smaller. None: there is none."""
        return next((one for one in self.edges(requests) if one.rows >= rows), None)

    def verify_ms(self, requests: int, rows: int) -> float:
        """Milliseconds of a verify step.

        Raises:
            CostError: no bucket holds it.
        """
        found = self.bucket(requests, rows)
        if found is None:
            raise CostError(
                f"no bucket of `verify` holds {rows} rows of {requests} requests; measure a larger one"
            )
        return found.milliseconds

    def unpadded_ms(self, requests: int, rows: int) -> float:
        """Milliseconds of so many rows without padding, on straight lines between the measured shapes.

        Raises:
            CostError: no shape is as large.
        """
        shapes = sorted(
            (one.rows, one.milliseconds) for one in (*self.verify, *self.between) if one.requests >= requests
        )
        behind = next(((at, cost) for at, cost in shapes if at >= rows), None)
        if behind is None:
            raise CostError(
                f"no shape of `verify` has {rows} rows of {requests} requests; measure a larger one"
            )
        before = max(((at, cost) for at, cost in shapes if at < rows), default=behind)
        if behind[0] == before[0]:
            return behind[1]
        share = (rows - before[0]) / (behind[0] - before[0])
        return before[1] + share * (behind[1] - before[1])

    def draft_ms(self, requests: int, drafts: int) -> float:
        """Milliseconds of drafting: of the smallest measured shape that holds it.

        Raises:
            CostError: no shape does.
        """
        if not self.draft or not drafts or not requests:
            return 0.0
        fitting = [one for one in self.draft if one.requests >= requests and one.drafts >= drafts]
        if not fitting:
            raise CostError(
                f"no entry of `draft` holds {drafts} drafts for {requests} requests; measure a larger one"
            )
        return min(one.milliseconds for one in fitting)

    def overlap_ms(self, requests: int, rows: int, drafts: int) -> float | None:
        """Milliseconds of verifying beside drafting; None where that was not measured."""
        fitting = [
            one.milliseconds
            for one in self.overlap
            if one.requests >= requests and one.rows >= rows and one.drafts >= drafts
        ]
        return min(fitting, default=None)

    def prefill_ms(self, rows: int) -> float:
        """Milliseconds of prompt rows, in as few forwards as the largest measured one allows.

        Raises:
            CostError: prefill was not measured.
        """
        if not rows:
            return 0.0
        if not self.prefill:
            raise CostError("`prefill` has no entry; measure the table again with prompts")
        largest = max(self.prefill, key=lambda one: one.rows)
        whole, rest = divmod(rows, largest.rows)
        behind = min((one.milliseconds for one in self.prefill if one.rows >= rest), default=0.0)
        return whole * largest.milliseconds + (behind if rest else 0.0)

    def padding_ms(self) -> list[tuple[VerifyCost, VerifyCost]]:
        """Each shape that was recorded unpadded, with the bucket that it would be padded to."""
        padded = ((one, self.bucket(one.requests, one.rows)) for one in sorted(self.between))
        return [(one, bucket) for one, bucket in padded if bucket is not None]


FILE: FiguresFile[Setup, StepCosts] = FiguresFile(
    "specpilot/step-costs/1", Setup, StepCosts, "costs", "step costs"
)


def read_costs(path: Path, here: Ground | None = None) -> tuple[Setup, StepCosts]:
    """The table of a file.

    Args:
        path: the file.
        here: what this run stands on, and the table must too; None: anything.

    Raises:
        FiguresError: the file is none, or was measured elsewhere.
        CostError: it holds no usable table.
    """
    setup, costs = FILE.read(path)
    if here is not None:
        hold_setup(path, here, setup, Ground._fields)
    return setup, costs


def bucket_shapes(most_requests: int, most_drafts: int, tile: int = 8) -> list[tuple[int, int]]:
    """Requests and rows worth recording: requests in powers of two, rows in whole tiles.

    Args:
        most_requests: of a step.
        most_drafts: of a request, or nodes of its tree.
        tile: rows that cost as much as one; kernels work on whole tiles.
    """
    requests = [1 << power for power in range(most_requests.bit_length()) if 1 << power <= most_requests]
    if requests[-1] != most_requests:
        requests.append(most_requests)
    found = set()
    for count in requests:
        most = -(-count * (1 + most_drafts) // tile) * tile
        step = tile
        rows = -(-count // tile) * tile
        while rows < most:
            found.add((count, rows))
            # Finer where plans are likely to fall, coarser above: at most a quarter is padding.
            step = max(step, rows // 4 // tile * tile)
            rows += step
        found |= {(count, most), (count, count)}
    return sorted(found)


def _shape(one: VerifyCost | DraftCost | PrefillCost | OverlapCost) -> tuple[int, ...]:
    if isinstance(one, OverlapCost):
        return one.requests, one.rows, one.drafts
    if isinstance(one, PrefillCost):
        return (one.rows,)
    return (one.requests, one.rows) if isinstance(one, VerifyCost) else (one.requests, one.drafts)
