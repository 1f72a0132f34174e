"""`specpilot-harness batching measure`: the table of step costs of this machine."""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from reference_mechanisms.batching.settings import MAX_SLOTS
from reference_mechanisms.errors import MechanismError

if TYPE_CHECKING:
    from reference_mechanisms.batching.measuring.running import Watch
    from reference_mechanisms.batching.measuring.steps import Load

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Run = Callable[[argparse.Namespace], int]
# (deployment, parameters of the arm, load, watch, file) -> what was found
Measure = Callable[[str, Mapping[str, object], "Load", "Watch", Path], str]


class MeasureError(MechanismError):
    """What the command line asks for cannot be measured."""


def register(
    actions: argparse._SubParsersAction[Parser], guard: Callable[[Run], Run], measure: Measure
) -> None:
    """Add `measure` to the commands of `batching`.

    Args:
        actions: of `batching`.
        guard: turns errors of a mechanism into those of the command line.
        measure: a deployment.
    """
    command = actions.add_parser("measure", help="measure what verifying, drafting and the host cost here")
    add = command.add_argument
    add("deployment", nargs="?", metavar="DEPLOYMENT", help="name of a built-in one, or a .toml file")
    add("--shape", metavar="NAME", help="dummy weights of a published shape instead, with its DFlash")
    add(
        "--mechanism",
        nargs="+",
        metavar=("NAME", "FIELD=VALUE"),
        help="drafter of the deployment, as in serve: `--mechanism dflash k=7` (default: none)",
    )
    add("--slots", type=int, default=32, metavar="N", help="most requests at a time (default: %(default)s)")
    add("--context", type=int, default=256, metavar="TOKENS", help="cached of each (default: %(default)s)")
    add("--rounds", type=int, default=20, metavar="R", help="of the medians (default: %(default)s)")
    add("--drafts", type=int, default=15, metavar="K", help="with --shape; 0: no drafter")
    add("--weights", default="bf16", choices=["bf16", "weight12"], help="with --shape")
    add("--device", default="cuda", choices=["cuda", "cpu"], help="with --shape")
    add("--seed", type=int, default=0, help="of dummy weights")
    add("--out", type=Path, required=True, metavar="COSTS.json", help="for `step_costs` and `simulate`")

    def run(options: argparse.Namespace) -> int:
        return _measure(options, measure)

    command.set_defaults(run=guard(run))


def _measure(options: argparse.Namespace, measure: Measure) -> int:
    from rich.console import Console  # noqa: PLC0415 - commands load only what they need
    from rich.progress import Progress  # noqa: PLC0415

    from reference_mechanisms.batching.measuring.running import Watch  # noqa: PLC0415
    from reference_mechanisms.batching.measuring.steps import Load  # noqa: PLC0415
    from reference_mechanisms.serving.commands import mechanism  # noqa: PLC0415

    _check(options)
    load = Load(options.slots, options.context, options.rounds)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("rounds", total=None)

        def told(done: int, of: int) -> None:
            progress.update(task, completed=done, total=of)

        watch = Watch(time.monotonic_ns, lambda: datetime.datetime.now(datetime.UTC), told)
        if options.shape is None:
            params = mechanism(options.mechanism or ["none"])
            found = measure(options.deployment, params, load, watch, options.out)
        else:
            found = _measure_shape(options, load, watch)
    print(found)
    print(f"wrote {options.out}")
    return 0


def _measure_shape(options: argparse.Namespace, load: Load, watch: Watch) -> str:
    import torch  # noqa: PLC0415

    from reference_mechanisms.batching.measuring.running import Named, measure  # noqa: PLC0415
    from reference_mechanisms.batching.measuring.subjects import dummy_subject  # noqa: PLC0415

    if options.device == "cuda" and not torch.cuda.is_available():
        raise MeasureError("--device is 'cuda', but torch finds no such device here")
    device = torch.device(options.device)
    sizes = (options.shape, options.weights, options.drafts, load, options.seed, device)
    subject = dummy_subject(*sizes)
    seeds = [f"dummy weights of seed {options.seed + n}" for n in range(2)]
    drafter = f"DFlash of {options.shape}" if options.drafts else "none"
    named = Named(options.shape, seeds[0], drafter, seeds[1] if options.drafts else "", options.weights)
    return measure(subject, named, load, watch, options.out)


def _check(options: argparse.Namespace) -> None:
    """Hold the options against each other.

    Raises:
        MeasureError: naming one.
    """
    if (options.deployment is None) == (options.shape is None):
        raise MeasureError("give a DEPLOYMENT or --shape NAME, one of the two")
    if options.shape is not None and options.mechanism is not None:
        raise MeasureError("--mechanism is of a DEPLOYMENT; with --shape give --drafts")
    if not 1 <= options.slots <= MAX_SLOTS:
        raise MeasureError(f"--slots must be in 1..{MAX_SLOTS}, got {options.slots}")
    for name in ("context", "rounds"):
        if getattr(options, name) < 1:
            raise MeasureError(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.drafts < 0:
        raise MeasureError(f"--drafts must be at least 0, got {options.drafts}")
