"""``specpilot-harness loop ceiling``: where stock's time goes, and what physics would leave of it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import EXIT_OK, DataError, HarnessError, InvalidRun, UsageError

if TYPE_CHECKING:
    from agent_loop.cost_model.ceiling import CeilingModel
    from agent_loop.cost_model.floors import Machine
    from harness.oracle.stored import StoredRun
    from harness.plan import Deployment, Param


def add_ceiling(parser: argparse.ArgumentParser) -> None:
    """Add the command's options; it sets `run`."""
    parser.add_argument(
        "target",
        metavar="DEPLOYMENT|REPORT_DIR",
        help="a deployment, plan or campaign whose stock is measured now, or the folder of a run",
    )
    parser.add_argument("--arm", default="stock", help="of a run (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it here too, as JSON")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="of torch.profiler: stages of the same arm's steps"
    )
    parser.add_argument(
        "--peaks", type=Path, metavar="FILE", help="take the machine's peaks from an earlier --out"
    )
    measured = parser.add_argument_group("where stock is measured now")
    measured.add_argument(
        "--backend", metavar="MODULE:FUNCTION", help="of stock (default: the plan's, or our engine)"
    )
    measured.add_argument(
        "--params", metavar="JSON", help="of stock (default: the plan's, or a chain of DFlash drafts)"
    )
    measured.add_argument("--prompts", type=int, default=2, metavar="N", help="(default: %(default)s)")
    measured.add_argument(
        "--tokens", type=int, default=48, metavar="N", help="of an answer (default: %(default)s)"
    )
    measured.add_argument("--work", type=Path, metavar="DIR", help="(default: reports/ceiling-NAME)")
    measured.add_argument("--overwrite", action="store_true", help="measure anew what lies in --work")
    parser.set_defaults(run=_ceiling)


def _ceiling(options: argparse.Namespace) -> int:
    from agent_loop.cost_model.ceiling import ceiling  # noqa: PLC0415
    from agent_loop.cost_model.machine import model_size  # noqa: PLC0415
    from agent_loop.watching import as_json, ceiling_text  # noqa: PLC0415
    from harness.models import resolve_model  # noqa: PLC0415
    from harness.oracle.stored import load_run  # noqa: PLC0415
    from harness.paths import RunFolder  # noqa: PLC0415
    from harness.storage import write_atomic  # noqa: PLC0415

    stored = Path(options.target)
    trace: Path | None = options.trace
    wall_s = None
    if stored.is_dir() or RunFolder(stored).report_json.is_file():
        run = load_run(stored)
        if options.peaks is None:
            _note("floors are of this machine; of a run from another one give --peaks")
    else:
        run, traced, wall_s = _measured(options)
        trace = trace or traced
    deployment = run.job.deployment
    size = model_size(resolve_model(deployment.target).path, deployment)
    if size is None:
        raise UsageError(
            f"deployment {deployment.name}: its target has no weight files here to compute floors from"
        )
    machine = _peaks(options.peaks, deployment)
    try:
        found = ceiling(run, options.arm, machine, size, _profile(trace, machine, wall_s))
    except ValueError as error:
        raise UsageError(f"{options.target}: {error}") from None
    print(ceiling_text(found))
    _warn(found)
    if options.out is not None:
        write_atomic(options.out, as_json(found))
        print(f"wrote {options.out}", file=sys.stderr)
    return EXIT_OK


def _measured(options: argparse.Namespace) -> tuple[StoredRun, Path | None, float | None]:
    """A short run of stock, a trace of it, and the seconds of the traced steps without the profiler."""
    from agent_loop.cost_model import probing  # noqa: PLC0415
    from agent_loop.executors.local import LocalProcesses  # noqa: PLC0415
    from harness import paths  # noqa: PLC0415

    if min(options.prompts, options.tokens) < 1:
        raise UsageError("--prompts and --tokens must be at least 1")
    stock = probing.stock_of(options.target, options.backend, _params(options.params))
    job = probing.probe_job(stock, options.prompts, options.tokens)
    folder: Path = options.work or Path("reports") / job.plan.name
    if options.overwrite:
        shutil.rmtree(folder, ignore_errors=True)
    _note(f"measuring {len(job.plan.arms)} arms on {options.prompts} prompts in {folder}")
    run = probing.run_probe(job, LocalProcesses(paths.user_cache() / "host.lock"), folder, _note)
    if stock.deployment.device == "remote":
        return run, None, None
    try:
        _note("tracing stock")
        traced = probing.trace_stock(stock, run, folder)
    except (InvalidRun, DataError) as error:
        _note(f"{error}; its stages are fitted from the arms instead")
        return run, None, None
    return run, folder / probing.TRACE, traced.wall_s


def _params(given: str | None) -> dict[str, Param] | None:
    if given is None:
        return None
    try:
        found = json.loads(given)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(
        isinstance(v, str | int | float | bool) for v in found.values()
    ):
        raise UsageError(f"--params must be a JSON object of strings, numbers and booleans, got {given!r}")
    return found


def _peaks(given: Path | None, deployment: Deployment) -> Machine:
    from agent_loop.cost_model.ceiling import CeilingModel  # noqa: PLC0415
    from agent_loop.cost_model.machine import measure_machine  # noqa: PLC0415
    from harness.codec import from_json  # noqa: PLC0415

    if given is None:
        return measure_machine(deployment)
    try:
        return from_json(given.read_bytes(), CeilingModel, str(given)).machine
    except OSError as error:
        raise UsageError(f"--peaks: {given}: cannot be read: {error.strerror}") from None


def _profile(trace: Path | None, machine: Machine, wall_s: float | None) -> Mapping[str, float] | None:
    from agent_loop.cost_model.stages import stages_of  # noqa: PLC0415

    if trace is None:
        return None
    try:
        return stages_of(trace.read_bytes(), machine.launch_s, wall_s).seconds
    except OSError as error:
        raise UsageError(f"--trace: {trace}: cannot be read: {error.strerror}") from None
    except HarnessError as error:
        raise DataError(f"{trace}: {error}") from None


def _warn(found: CeilingModel) -> None:
    below = [gap.component for gap in found.gaps if gap.below_floor]
    if below:
        _note(f"below its floor: {', '.join(below)}; a measurement or a peak is wrong there")


def _note(text: str) -> None:
    print(text, file=sys.stderr)
