"""`specpilot-harness batching simulate`: what each mechanism is worth, from a table and a trace."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from reference_mechanisms.batching.bench.commands import register as register_bench
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.batching.traces.commands import Responses
from reference_mechanisms.batching.traces.commands import register as register_traces
from reference_mechanisms.jsonfile import write_json

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Run = Callable[[argparse.Namespace], int]


def register(
    commands: argparse._SubParsersAction[Parser], guard: Callable[[Run], Run], responses: Responses
) -> argparse._SubParsersAction[Parser]:
    """Add `batching`; return its commands.

    Args:
        commands: of the command line.
        guard: turns errors of a mechanism into those of the command line.
        responses: reads the responses of a run.
    """
    batching = commands.add_parser("batching", help="schedule many requests at a time")
    actions = batching.add_subparsers(dest="action", required=True)
    command = actions.add_parser("simulate", help="what each mechanism is worth on a table and a trace")
    command.add_argument("costs", type=Path, help="file of measured step costs")
    command.add_argument("traces", type=Path, help="file of recorded acceptance")
    command.add_argument("--slots", type=int, nargs="+", default=[8, 32, 64], help="requests at a time")
    command.add_argument(
        "--prefill-rows", type=int, default=256, help="prompt rows of a step while others decode"
    )
    command.add_argument(
        "--cohorts", action="store_true", help="two cohorts too; the table must have overlap"
    )
    command.add_argument("--out", type=Path, help="JSON file to write")
    command.set_defaults(run=guard(_simulate))
    register_traces(actions, guard, responses)
    register_bench(actions, guard)
    return actions


def _simulate(options: argparse.Namespace) -> int:
    from reference_mechanisms.batching.comparing import compare  # noqa: PLC0415 - it loads torch

    results = {}
    for slots in options.slots:
        settings = BatchSettings(
            slots=slots,
            budget=True,
            adaptive=True,
            cohorts=options.cohorts,
            prefill_rows=options.prefill_rows or None,
            buckets=True,
        )
        rows = results[slots] = compare(options.costs, options.traces, settings)
        print(f"{slots} requests at a time")
        for row in rows:
            print(
                f"  {row.variant:26} {row.tokens_per_second:10.1f} tokens/s {row.steps:7} steps "
                f"{row.rows:9} rows {row.padding:8} padding {row.stalled_ms:9.1f} ms stalled"
            )
    if options.out is not None:
        write_json(options.out, {"simulated": True, "results": {str(n): rows for n, rows in results.items()}})
    return 0
