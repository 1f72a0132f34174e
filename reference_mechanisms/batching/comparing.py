"""What each mechanism is worth on a table of costs and a trace of acceptance."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from reference_mechanisms.batching.costs import read_costs
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.batching.simulating import Simulated, simulate, variants
from reference_mechanisms.batching.traces.format import read_traces


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of the result."""

    variant: str
    mechanisms: tuple[str, ...]
    tokens_per_second: float
    steps: int
    rows: int
    padding: int
    stalled_ms: float


def compare(costs: Path, traces: Path, settings: BatchSettings) -> list[Row]:
    """Every variant of a full set of mechanisms, fastest first.

    Args:
        costs: file of step costs.
        traces: file of acceptance.
        settings: the full set.

    Raises:
        FiguresError: a file cannot be read.
        CostError: the table does not hold a shape that is needed.
        TraceError: a trace is shorter than its output.
    """
    table, (recording, recorded) = read_costs(costs)[1], read_traces(traces)
    rows = [
        _row(name, one, simulate(recorded, one, table, recording.drafts))
        for name, one in variants(settings).items()
    ]
    return sorted(rows, key=lambda row: -row.tokens_per_second)


def _row(name: str, settings: BatchSettings, found: Simulated) -> Row:
    return Row(
        name,
        settings.on,
        found.tokens_per_second,
        found.steps,
        found.rows,
        found.padding,
        found.stalled_ms,
    )
