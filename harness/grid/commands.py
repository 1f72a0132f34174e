"""``specpilot-harness reproduce``: the grid on one GPU, from looking around to the paper's claims."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.errors import EXIT_INVALID, EXIT_OK, EXIT_VIOLATED

if TYPE_CHECKING:
    from harness.grid.preflight import Hub, Machine, Preflight
    from harness.grid.records import Cell, GridGpu
    from harness.grid.running import CellResult, Measure

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
MeasureFor = Callable[[argparse.Namespace], "Measure"]
Bench = Callable[[Sequence[str]], int]


def register(commands: argparse._SubParsersAction[Parser], measure_for: MeasureFor, bench: Bench) -> None:
    """Add the command `reproduce`.

    Args:
        commands: of the command line.
        measure_for: what runs a job, with the options of the call.
        bench: runs `engine bench` with these arguments.
    """
    command = commands.add_parser(
        "reproduce",
        help="the grid of targets, drafters and sets on one GPU, and the paper's claims against it",
        epilog="exit codes: 0 all cells done, 1 a run violated, 2 INVALID (another GPU, no access), 3 usage",
    )
    add = command.add_argument
    add("gpu", help="GPU to reproduce on: h100, h200 or rtx-pro-6000; on any other there is no run")
    add("--only", metavar="TARGET/DRAFTER/SET", help="some of the grid; * for any, /REGIME may follow")
    add("--out", type=Path, help="folder of the runs (default: reports/reproduce-GPU); a second call resumes")
    add("--dry-run", action="store_true", help="look around and say what would be done")
    add("--system-only", action="store_true", help="published shapes with dummy weights: no hub, no claim")
    add("--evals-dir", type=Path, help="folder with the original evaluation files")
    command.set_defaults(run=lambda options: _reproduce(options, measure_for, bench))


def _reproduce(options: argparse.Namespace, measure_for: MeasureFor, bench: Bench) -> int:
    from harness.grid.hub import HuggingFaceHub  # noqa: PLC0415 - commands load what they need
    from harness.grid.preflight import this_machine  # noqa: PLC0415
    from harness.paths import user_cache  # noqa: PLC0415

    return run(options, this_machine(user_cache()), HuggingFaceHub(), measure_for(options), bench)


def run(options: argparse.Namespace, machine: Machine, hub: Hub, measure: Measure, bench: Bench) -> int:
    """Everything behind the command line: look around, say what it costs, measure, verify."""
    from harness.grid.preflight import gpu_check, preflight  # noqa: PLC0415
    from harness.grid.records import cells, load_grid  # noqa: PLC0415
    from harness.grid.running import reproduce  # noqa: PLC0415

    grid = load_grid()
    gpu, chosen = grid.gpu(options.gpu), cells(grid, options.only)
    out = options.out or Path("reports") / f"reproduce-{gpu.name}"
    if options.system_only:
        check = gpu_check(machine, gpu)
        if not check.ok:
            print(f"INVALID: {check.detail}; no number is given")
            return EXIT_INVALID
        return _system(chosen, out, bench, dry=options.dry_run)
    ready = preflight([cell for cell in chosen if cell.drafter.published], gpu, machine, hub)
    for one in ready.checks:
        print(f"{one.what}: {'ok' if one.ok else 'FAILED'}; {one.detail}")
    if not ready.ok:
        faults = "; ".join(one.detail for one in ready.checks if not one.ok)
        print(f"INVALID: {faults}; nothing was measured and no number is given")
        return EXIT_INVALID
    _say_cost(chosen, gpu, ready)
    if options.dry_run:
        return EXIT_OK
    results = reproduce(chosen, gpu, ready, hub, out, measure)
    for result in results:
        _say_result(result)
    print(f"summary: {out / 'summary.json'}")
    return EXIT_VIOLATED if _violated(results) else EXIT_OK


def _say_cost(chosen: Sequence[Cell], gpu: GridGpu, ready: Preflight) -> None:
    from harness.grid.jobs import Pins, TooLarge  # noqa: PLC0415
    from harness.grid.running import planned  # noqa: PLC0415

    total, runs, tuned = 0.0, 0, set()
    for cell in chosen:
        if not cell.drafter.published:
            print(f"{cell.key}: not published, nothing to run")
            continue
        try:
            found = planned(cell, gpu, Pins(ready.pins))
        except TooLarge as error:
            print(f"does not fit: {error}")
            continue
        shared = (cell.target.name, cell.drafter.name, cell.regime.name)
        own = [one for one in found if one.part != "tune" or shared not in tuned]
        tuned.add(shared)
        total += sum(one.seconds for one in own)
        runs += len(own)
    size = sum(ready.downloads.values()) / 1e9
    print(f"will download {size:.1f} GB and make {runs} runs, about {total / 3600:.1f} hours on this GPU")


def _say_result(result: CellResult) -> None:
    from harness.report.text import plain  # noqa: PLC0415

    print(f"{result.cell}: {result.status}: {plain(result.detail)}")
    for claim in result.claims:
        verdict = f"{claim.verdict.upper()} ({claim.rule})"
        print(f"  {claim.claim} by arm {claim.arm}: {verdict}: {plain(claim.detail)}")


def _violated(results: Sequence[CellResult]) -> bool:
    return any(claim.rule == "lossless" and claim.verdict == "refuted" for r in results for claim in r.claims)


def _system(chosen: Sequence[Cell], out: Path, bench: Bench, *, dry: bool) -> int:
    """Shapes with dummy weights, and forced acceptance: a system figure, behind no claim."""
    shapes = sorted({cell.target.shape for cell in chosen if cell.target.shape is not None})
    without = sorted({cell.target.name for cell in chosen if cell.target.shape is None})
    for name in without:
        print(f"{name}: its shape is not known to the engine's bench; left out")
    if dry or not shapes:
        print(f"would time the shapes {', '.join(shapes) or '(none)'}; no download")
        return EXIT_OK
    codes = [bench(["--shape", shape, "--out", str(out / f"system-{shape}")]) for shape in shapes]
    return max(codes)
