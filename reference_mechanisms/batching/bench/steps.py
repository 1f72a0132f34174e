"""The time of a step, from request sets of two lengths: what they have in common, as prompts, cancels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tabulate import tabulate

from reference_mechanisms.batching.bench.beside import OWN, RELEASED, Timed
from reference_mechanisms.batching.bench.lines import Served
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.weight12.plugin.step_times.steps import spread


class StepError(MechanismError):
    """Two request sets give no time of a step."""


class StepTime(NamedTuple):
    """Of one engine in one round."""

    engine: str
    concurrency: int
    round: int
    milliseconds: float


def step_ms(short: Served, long: Served) -> float:
    """Milliseconds of a step of the whole batch.

    Requests that all run from the start end at different steps: their verify steps are averaged.

    Raises:
        StepError: requests waited, nothing was verified, or more tokens took no longer.
    """
    if short.requests > short.concurrency or long.requests != short.requests:
        raise StepError("a step's time is of as many requests as run at a time, twice the same")
    if not short.verifications or not long.verifications:
        raise StepError("no verify step was counted")
    steps = (long.verifications - short.verifications) / long.requests
    if steps <= 0 or long.wall_s <= short.wall_s:
        raise StepError(f"{long.tokens} tokens took no longer than {short.tokens}")
    return 1e3 * (long.wall_s - short.wall_s) / steps


def step_times(timed: Sequence[Timed]) -> list[StepTime]:
    """Times of steps, from pairs of a short and a long request set as they follow each other.

    Raises:
        StepError: a pair gives none.
    """
    pairs = zip(timed[::2], timed[1::2], strict=True)
    return [
        StepTime(one.engine, one.served.concurrency, one.round, step_ms(one.served, two.served))
        for one, two in pairs
    ]


def step_rows(times: Sequence[StepTime]) -> list[dict[str, Any]]:
    """A row for each load and engine: medians over rounds, and stock over ours, paired by round."""
    rows = []
    for load in sorted({one.concurrency for one in times}):
        by_round = {
            name: {
                one.round: one.milliseconds for one in times if (one.concurrency, one.engine) == (load, name)
            }
            for name in (OWN, RELEASED)
        }
        both = by_round[OWN].keys() & by_round[RELEASED].keys()
        for name, own in by_round.items():
            if own:
                rows.append({"concurrency": load, "engine": name, "step_ms": spread(own.values())})
        if both:
            ratios = (by_round[RELEASED][n] / by_round[OWN][n] for n in both)
            rows[-1]["it_over_ours"] = spread(ratios)
    return rows


def step_table(rows: Sequence[dict[str, Any]]) -> str:
    """For people."""
    lines = [
        (
            row["concurrency"],
            row["engine"],
            f"{row['step_ms']['median']:.3f}",
            f"{row['it_over_ours']['median']:.2f}x" if "it_over_ours" in row else "",
            row["step_ms"]["rounds"],
        )
        for row in rows
    ]
    headers = ("requests at a time", "engine", "ms a step", "it over ours", "rounds")
    return tabulate(lines, headers=headers, tablefmt="github", disable_numparse=True)
