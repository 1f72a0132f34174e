"""`specpilot-harness engine bench-hybrid`: steps of a dummy hybrid target on this GPU, as JSON."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reference_mechanisms.jsonfile import write_json

if TYPE_CHECKING:
    from reference_mechanisms.engine.fitting import WeightFormat

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Run = Callable[[argparse.Namespace], int]
EXIT_OK = 0


def register_hybrid(commands: argparse._SubParsersAction[Parser], guard: Callable[[Run], Run]) -> None:
    """Add the command.

    Args:
        commands: of `engine`.
        guard: turns the errors of a command into those of the command line.
    """
    bench = commands.add_parser(
        "bench-hybrid", help="steps of a hybrid target: chains and trees, recurrence and WY form, batch 1"
    )
    bench.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the times go")
    bench.add_argument("--shape", nargs="+", default=["Qwen3.5-27B", "Qwen3.5-9B"], metavar="NAME")
    bench.add_argument("--weights", nargs="+", default=["weight12"], choices=["weight12", "bf16"])
    bench.add_argument("--context", type=int, default=512, metavar="TOKENS", help="in front of a step")
    bench.add_argument("--rounds", type=int, default=30, metavar="R", help="whose median is told")
    bench.add_argument("--seed", type=int, default=0)
    bench.set_defaults(run=guard(_bench))


def _bench(options: argparse.Namespace) -> int:
    import torch  # noqa: PLC0415 - commands load only what they need

    from reference_mechanisms.errors import MechanismError  # noqa: PLC0415
    from reference_mechanisms.targets.shapes import hybrid_shape_config  # noqa: PLC0415

    if options.rounds < 1 or options.context < 1:
        raise MechanismError("--rounds and --context are at least 1")
    for shape in options.shape:
        hybrid_shape_config(shape)
    if not torch.cuda.is_available():
        raise MechanismError("engine bench-hybrid needs a CUDA device")
    options.out.mkdir(parents=True, exist_ok=True)
    for shape in options.shape:
        for weights in options.weights:
            print(measure(options, shape, weights, torch.device("cuda"), time.perf_counter_ns))
            torch.cuda.empty_cache()
    return EXIT_OK


def measure(
    options: argparse.Namespace, shape: str, weights: WeightFormat, device: Any, clock: Callable[[], int]
) -> str:
    """Time one shape in one format; the file is written after each time.

    Args:
        options: of the command line.
        shape: of the target.
        weights: format of its matrices.
        device: to run on.
        clock: tells nanoseconds.

    Returns:
        The times for people.

    Raises:
        TargetError: the shape is unknown, or does not fit.
    """
    import torch  # noqa: PLC0415

    from reference_mechanisms.engine.bench import engines, hybrid_steps  # noqa: PLC0415

    load = hybrid_steps.Load(context=options.context, rounds=options.rounds, seed=options.seed)
    _say(f"{shape} in {weights}: loading")
    target = engines.dummy_hybrid(shape, weights, load.seed, load.context, device)
    delta, layers = target.config.delta, target.config.kinds.count("linear_attention")
    found: dict[str, Any] = {
        "division": "system",
        "command": " ".join(["specpilot-harness", *sys.argv[1:]]),
        "target": shape,
        "weights": weights,
        "kernel": target.linear_kernel,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": str(torch.__version__),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "context": load.context,
        "rounds": load.rounds,
        "bytes_to_take_back": hybrid_steps.memory_of(delta, layers, target.dtype),
        "steps": [],
        "layers": [],
    }
    path = options.out / f"hybrid-steps-{shape}-{weights}.json"
    for one in hybrid_steps.step_times(target, load, clock):
        found["steps"].append(one)
        write_json(path, found)
        _say(f"{shape} in {weights}: {one['case']}, {one['form']}: {one['step_ms']['median']} ms")
    for one in hybrid_steps.layer_times(delta, layers, target.dtype, device, load, clock):
        found["layers"].append(one)
        write_json(path, found)
    return table(found)


def table(found: dict[str, Any]) -> str:
    """Steps and layers side by side."""
    from tabulate import tabulate  # noqa: PLC0415

    rows = [
        (
            step["case"],
            step["form"],
            step["step_ms"]["median"],
            layer["layer_ms"]["median"],
            layer["commit_ms"]["median"],
        )
        for step, layer in zip(found["steps"], found["layers"], strict=True)
    ]
    headers = (f"{found['target']} in {found['weights']}", "form", "ms a step", "ms a layer", "ms to commit")
    return tabulate(rows, headers=headers, tablefmt="github")


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
