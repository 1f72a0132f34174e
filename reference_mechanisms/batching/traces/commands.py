"""`specpilot-harness batching traces`: the acceptance that simulation and benches replay."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from reference_mechanisms.batching.traces.format import (
    TRACES,
    Recording,
    Siblings,
    Trace,
    TraceError,
    acceptance_length,
)
from reference_mechanisms.batching.traces.recording import Recorded, traces_of

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Run = Callable[[argparse.Namespace], int]
# Folder of a run, and an arm or None for the only one that drafts -> source, and one response of each prompt
Responses = Callable[[Path, str | None], tuple[str, Sequence[Recorded]]]


def register(
    actions: argparse._SubParsersAction[Parser], guard: Callable[[Run], Run], responses: Responses
) -> None:
    """Add the command.

    Args:
        actions: of `batching`.
        guard: turns errors of a mechanism into those of the command line.
        responses: reads a run.
    """
    command = actions.add_parser("traces", help="acceptance of a run, or one that is imposed, for replaying")
    add = command.add_argument
    add("report", type=Path, nargs="?", metavar="REPORT_DIR", help="run of an engine that tells its steps")
    add("--arm", help="of the run (default: the only one that drafts)")
    add(
        "--imposed",
        nargs="+",
        metavar="DRAFTS=LENGTH",
        help="no run: acceptance lengths at one or two draft lengths, as 15=6.5 7=4.5",
    )
    add("--requests", type=int, default=256, help="imposed: (default: %(default)s)")
    add("--prompt", type=int, default=128, metavar="TOKENS", help="imposed: (default: %(default)s)")
    add("--tokens", type=int, default=400, help="imposed: of each output (default: %(default)s)")
    add(
        "--spread",
        type=float,
        default=1.0,
        help="imposed: of log-odds, for one length (default: %(default)s)",
    )
    add("--noise", type=float, default=0.5, help="imposed: of confidences' log-odds (default: %(default)s)")
    add(
        "--siblings",
        type=float,
        nargs="+",
        metavar="SHARE",
        help="imposed: where a draft is wrong, how often its siblings are right; for draft trees",
    )
    add(
        "--off-spine",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="imposed: of what stands behind such a token (default: %(default)s)",
    )
    add("--seed", type=int, default=0, help="imposed: (default: %(default)s)")
    add("--out", type=Path, required=True, metavar="TRACES", help="JSON file to write")
    command.set_defaults(run=guard(lambda options: _traces(options, responses)))


def _traces(options: argparse.Namespace, responses: Responses) -> int:
    if (options.report is None) == (options.imposed is None):
        raise TraceError("give either REPORT_DIR or --imposed DRAFTS=LENGTH")
    if options.imposed is None:
        recording, traces = traces_of(*responses(options.report, options.arm))
    else:
        recording, traces = _imposed(options)
    TRACES.write(options.out, recording, traces)
    kind = "synthetic" if recording.synthetic else "recorded"
    print(f"{len(traces)} {kind} traces, {recording.source}")
    print(f"{acceptance_length(traces, recording.drafts):.3f} tokens a step with {recording.drafts} drafts")
    print(f"wrote {options.out}")
    return 0


def _imposed(options: argparse.Namespace) -> tuple[Recording, tuple[Trace, ...]]:
    from reference_mechanisms.batching.traces.imposing import Imposed, impose  # noqa: PLC0415

    try:
        pairs = [one.split("=") for one in options.imposed]
        lengths = {int(drafts): float(length) for drafts, length in pairs}
    except ValueError:
        raise TraceError(f"--imposed {' '.join(options.imposed)}: write DRAFTS=LENGTH, as 15=6.5") from None
    siblings = None
    if options.siblings is not None:
        siblings = Siblings(shares=tuple(options.siblings), off_spine=options.off_spine)
    return impose(
        Imposed(
            lengths=lengths,
            requests=options.requests,
            prompt=options.prompt,
            tokens=options.tokens,
            spread=options.spread,
            noise=options.noise,
            siblings=siblings,
            seed=options.seed,
        )
    )
