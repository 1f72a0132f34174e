"""Pieces of a step timed in turn, and the table that comes of it; nothing here knows what a piece does."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from reference_mechanisms.batching.costs import DraftCost, OverlapCost, PrefillCost, StepCosts, VerifyCost

Kind = Literal["verify", "between", "draft", "overlap", "prefill", "catch up", "host"]
Clock = Callable[[], int]  # nanoseconds
WARM_UPS = 2  # rounds that do not count
NS = 1e6  # in a millisecond


class Piece(NamedTuple):
    """What is timed."""

    kind: Kind
    shape: tuple[int, ...]  # requests and rows, or as its kind has it


class Job(NamedTuple):
    """A piece, and how to do it once; when it returns, the device is done."""

    piece: Piece
    work: Callable[[], None]


Told = Callable[[int, int], None]  # rounds done, and how many there are


def time_in_turn(jobs: Sequence[Job], rounds: int, clock: Clock, told: Told) -> dict[Piece, list[int]]:
    """Nanoseconds of each piece, once a round; every other round runs backwards.

    So a drift of the machine, and what a piece leaves in its caches, spreads over all of them.

    Args:
        jobs: pieces, all different.
        rounds: that count.
        clock: of the times.
        told: of progress.
    """
    found: dict[Piece, list[int]] = defaultdict(list)
    for turn in range(WARM_UPS + rounds):
        for piece, work in jobs if turn % 2 else reversed(jobs):
            began = clock()
            work()
            if turn >= WARM_UPS:
                found[piece].append(clock() - began)
        told(turn + 1, WARM_UPS + rounds)
    return dict(found)


def table(times: Mapping[Piece, Sequence[int]]) -> StepCosts:
    """Medians with their quartiles, as the table of costs.

    Raises:
        CostError: no verify step was timed.
    """
    kinds: dict[Kind, list[tuple[tuple[int, ...], float, tuple[float, float]]]] = defaultdict(list)
    for (kind, shape), taken in sorted(times.items()):
        kinds[kind].append((shape, *_summed(taken)))

    def verify(kind: Kind) -> tuple[VerifyCost, ...]:
        return tuple(
            VerifyCost(requests=shape[0], rows=shape[1], milliseconds=middle, quartiles_ms=quartiles)
            for shape, middle, quartiles in kinds[kind]
        )

    def only(kind: Kind) -> float:
        return max((middle for _, middle, _ in kinds[kind]), default=0.0)

    return StepCosts(
        verify=verify("verify"),
        between=verify("between"),
        draft=tuple(
            DraftCost(requests=shape[0], drafts=shape[1], milliseconds=middle, quartiles_ms=quartiles)
            for shape, middle, quartiles in kinds["draft"]
        ),
        overlap=tuple(
            OverlapCost(
                requests=shape[0], rows=shape[1], drafts=shape[2], milliseconds=middle, quartiles_ms=quartiles
            )
            for shape, middle, quartiles in kinds["overlap"]
        ),
        prefill=tuple(
            PrefillCost(rows=shape[0], milliseconds=middle, quartiles_ms=quartiles)
            for shape, middle, quartiles in kinds["prefill"]
        ),
        catch_up_ms=only("catch up"),
        step_ms=only("host"),
    )


def _summed(taken: Sequence[int]) -> tuple[float, tuple[float, float]]:
    """Median, and first and third quartile, in milliseconds."""
    if len(taken) == 1:
        return taken[0] / NS, (taken[0] / NS, taken[0] / NS)
    low, middle, high = statistics.quantiles(taken, n=4, method="inclusive")
    return middle / NS, (low / NS, high / NS)
