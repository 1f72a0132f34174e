"""`specpilot-harness engine bench`: times of a dummy target's steps on this GPU, as JSON."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reference_mechanisms.engine.bench.hybrid_command import register_hybrid
from reference_mechanisms.jsonfile import write_json

if TYPE_CHECKING:
    from reference_mechanisms.drafters.fused_block import FusedDrafter
    from reference_mechanisms.engine.bench.keeping import Kept
    from reference_mechanisms.engine.bench.running import Bench, Load
    from reference_mechanisms.engine.fitting import DrafterFormat, WeightFormat

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Run = Callable[[argparse.Namespace], int]
EXIT_OK, EXIT_FAILED = 0, 1
SUMMARY = "summary.json"
CODE = (".py", ".cu", ".cuh")


def register(
    subparsers: argparse._SubParsersAction[Parser], guard: Callable[[Run], Run]
) -> argparse._SubParsersAction[Parser]:
    """Add the command `engine` to a command line and return its sub-commands; each sets `run`.

    Args:
        subparsers: of the command line.
        guard: turns the errors of a command into those of the command line.
    """
    engine = subparsers.add_parser("engine", help="time the reference engine on this GPU")
    commands = engine.add_subparsers(metavar="ACTION", required=True)
    bench = commands.add_parser(
        "bench", help="steps of a dummy target or a folder's, batch 1; exact or exit code 1"
    )
    bench.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the times go")
    bench.add_argument("--shape", default="Qwen3-8B", metavar="NAME", help="published shape of the target")
    bench.add_argument("--folder", type=Path, metavar="DIR", help="a real target instead; nothing drafts")
    bench.add_argument("--no-drafter", action="store_true", help="time verification without a drafter")
    bench.add_argument("--weights", nargs="+", default=["weight12", "bf16"], choices=["weight12", "bf16"])
    bench.add_argument("--drafts", type=int, default=15, metavar="K", help="0: autoregressive only")
    bench.add_argument("--acceptance-length", type=float, default=6.5, metavar="TAU")
    bench.add_argument("--prompt", type=int, default=128, metavar="TOKENS")
    bench.add_argument("--output", type=int, default=400, metavar="TOKENS")
    bench.add_argument("--requests", type=int, default=4, metavar="N", help="whose logits are compared")
    bench.add_argument("--timed", type=int, default=4, metavar="N", help="of them, whose times are taken")
    bench.add_argument(
        "--drafter-weights",
        nargs="+",
        default=["same"],
        choices=["same", "int8", "fp8"],
        help="format of the drafter: the target's, or rounded to eight bits; several one after the other",
    )
    bench.add_argument(
        "--ways",
        nargs="*",
        default=[],
        choices=["joins", "early", "gates"],
        help="what the kernels do in another way: with the same bits, but for the exponential of gates",
    )
    bench.add_argument(
        "--fetch",
        type=int,
        default=0,
        metavar="MIB",
        help="of the next product's weights, fetched while attention runs",
    )
    bench.add_argument("--seed", type=int, default=0)
    bench.set_defaults(run=guard(_bench))
    guess = commands.add_parser(
        "predict", help="steps on an RTX PRO 6000, predicted from those measured on an H200; needs no GPU"
    )
    guess.add_argument("summary", type=Path, metavar="FILE", help="summary.json of engine bench")
    guess.add_argument("--out", type=Path, metavar="FILE", help="write the table as JSON too")
    guess.set_defaults(run=guard(_predict))
    beside = commands.add_parser(
        "bench-vllm", help="the same beside vLLM: both resident, timed in turn, the Qwen3-8B shape"
    )
    beside.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the times go")
    beside.add_argument("--weights", nargs="+", default=["weight12"], choices=["weight12", "bf16"])
    beside.add_argument("--modes", nargs="+", default=["ar", "dflash"], choices=["ar", "dflash"])
    beside.add_argument("--rounds", type=int, default=8, metavar="R", help="interleaved between engines")
    beside.add_argument("--seconds", type=float, default=1200, metavar="S", help="limit of the whole")
    beside.set_defaults(run=guard(_bench_vllm))
    register_hybrid(commands, guard)
    return commands


def _bench(options: argparse.Namespace) -> int:
    import torch  # noqa: PLC0415 - commands load only what they need

    from reference_mechanisms.engine.bench.running import Load  # noqa: PLC0415
    from reference_mechanisms.errors import TargetError  # noqa: PLC0415

    if not torch.cuda.is_available():
        raise TargetError("engine bench needs a CUDA device")
    load = Load(
        prompt=options.prompt,
        output=options.output,
        requests=options.requests,
        seed=options.seed,
        acceptance_length=options.acceptance_length,
        timed=options.timed,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {
        "division": "system",
        "target": options.shape if options.folder is None else options.folder.name,
        "drafter": None if options.no_drafter or options.folder else "DFlash",
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "load": {name: getattr(load, name) for name in load.__slots__},
        "drafts": options.drafts,
        "ways": sorted([*options.ways, *([f"fetch {options.fetch} MiB"] if options.fetch else [])]),
        "ar_step_ms": {},
        "k15_step_ms" if options.drafts == 15 else f"k{options.drafts}_step_ms": {},
        "exact_tokens": 0,
        "logit_mismatches": 0,
        "engines": {},
    }
    for weights in options.weights:
        _measure(options, weights, load, summary)
    return EXIT_FAILED if summary["logit_mismatches"] else EXIT_OK


def _predict(options: argparse.Namespace) -> int:
    from tabulate import tabulate  # noqa: PLC0415

    from reference_mechanisms.engine.bench import engines, predicting  # noqa: PLC0415
    from reference_mechanisms.errors import MechanismError  # noqa: PLC0415
    from reference_mechanisms.targets.shapes import SHAPES, shape_config  # noqa: PLC0415

    try:
        summary = json.loads(options.summary.read_text())
        target = str(summary["target"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MechanismError(f"{options.summary} is no summary of engine bench: {error}") from None
    targets = {name: shape_config(name) for name in SHAPES}
    found = predicting.predicted(summary, targets, engines.drafter_config(target))
    if options.out is not None:
        write_json(options.out, found)
    rows = [(one["target"], one["weights"], one["mode"], one["step_ms"]) for one in found]
    gpu, of = predicting.PREDICTED, predicting.MEASURED
    print(f"{gpu.name}, predicted from {of.name}: {gpu.bytes_per_s / 1e12} TB/s as its data sheet says\n")
    print(tabulate(rows, headers=("target", "weights", "mode", "ms a step, predicted"), tablefmt="github"))
    return EXIT_OK


def _bench_vllm(options: argparse.Namespace) -> int:
    import torch  # noqa: PLC0415

    from reference_mechanisms.engine.beside_vllm import comparing  # noqa: PLC0415
    from reference_mechanisms.errors import MechanismError  # noqa: PLC0415
    from reference_mechanisms.weight12.plugin.step_times import rounds  # noqa: PLC0415

    if options.rounds < 1 or not 0 < options.seconds < float("inf"):
        raise MechanismError("--rounds are at least 1, --seconds more than 0")
    if not torch.cuda.is_available() or importlib.util.find_spec("vllm") is None:
        raise MechanismError("bench-vllm needs a CUDA device and vLLM 0.25.1 or newer: pip install vllm")
    told = ["specpilot-harness engine bench-vllm --out", str(options.out), "--weights", *options.weights]
    told += ["--modes", *options.modes, "--rounds", str(options.rounds)]
    plan = rounds.Plan(
        engines=comparing.engines(options.weights, options.modes),
        batches=(1,),
        rounds=options.rounds,
        limit_s=options.seconds,
    )

    def heard(found: rounds.Found) -> None:
        comparing.write(options.out, found, " ".join(told))
        _say(f"round {found.rounds} of {plan.rounds} is written")

    found = rounds.measure(plan, options.out / "logs", heard, comparing.command)
    comparing.write(options.out, found, " ".join(told))
    print(comparing.text(found))
    return EXIT_FAILED if found.faults else EXIT_OK


def _measure(options: argparse.Namespace, weights: WeightFormat, load: Load, summary: dict[str, Any]) -> None:
    """Both ways of decoding with one format of weights; `summary` is written after each."""
    import torch  # noqa: PLC0415

    from reference_mechanisms.engine.bench import engines  # noqa: PLC0415
    from reference_mechanisms.engine.bench.running import Bench  # noqa: PLC0415
    from reference_mechanisms.kernels.step.twin import Ways  # noqa: PLC0415

    device, shape = torch.device("cuda"), summary["target"]
    sizes = engines.Sizes(load.positions, options.drafts + 1)
    _say(f"{shape} in {weights}: loading")
    ways = Ways(**dict.fromkeys(options.ways, True), fetch=options.fetch)
    if options.folder is None:
        target = engines.dummy_target(shape, weights, load.seed, sizes, device, ways)
    else:
        target = engines.folder_target(options.folder, weights, sizes, device, ways)
    bench = Bench(target, load, _say, _kept(options, weights, load, summary), ways)
    _say(f"{shape} in {weights}: autoregressive")
    found = bench.autoregressive()
    summary["engines"][f"ar {weights}"] = found
    summary["ar_step_ms"][weights] = found["step_ms"]
    write_json(options.out / SUMMARY, summary)
    found["waterfall"] = bench.profiled()
    write_json(options.out / SUMMARY, summary)
    if options.drafts:
        forms: dict[str, DrafterFormat] = {"same": weights, "int8": "int8", "fp8": "fp8"}
        for rounded in options.drafter_weights if summary["drafter"] else ["same"]:
            drafter, seed = None, load.seed + 1
            if summary["drafter"] is not None:
                drafter = engines.dummy_drafter(shape, target, forms[rounded], options.drafts, seed, ways)
            _speculative(options, (weights, rounded), bench, drafter, summary)
    del bench, target
    torch.cuda.empty_cache()


def _speculative(
    options: argparse.Namespace,
    formats: tuple[str, str],
    bench: Bench,
    drafter: FusedDrafter | None,
    summary: dict[str, Any],
) -> None:
    """With drafts; `formats` of target and drafter."""
    drafts, path, (weights, rounded) = options.drafts, options.out / SUMMARY, formats
    name = f"k{drafts} {weights}" if rounded == "same" else f"k{drafts} {weights}, {rounded} drafter"
    _say(f"{summary['target']}: {name}")
    before = summary["exact_tokens"], summary["logit_mismatches"]

    def heard(tokens: int, wrong: int) -> None:
        summary["exact_tokens"], summary["logit_mismatches"] = before[0] + tokens, before[1] + wrong
        write_json(path, summary)

    found = bench.speculative(drafter, drafts, name, heard)
    summary["engines"][name] = found
    summary[f"k{drafts}_step_ms"][_short(weights, rounded)] = found["step_ms"]
    write_json(path, summary)
    found["waterfall"] = bench.profiled()
    write_json(path, summary)


def _short(weights: str, rounded: str) -> str:
    """Name of a step's time in the summary."""
    if rounded != "same":
        return f"{rounded}_drafter" if weights == "weight12" else f"{weights}_{rounded}_drafter"
    return "same_drafts" if weights == "weight12" else weights


def _kept(options: argparse.Namespace, weights: str, load: Load, summary: dict[str, Any]) -> Kept:
    """What an earlier run with the same options has compared already."""
    from reference_mechanisms.engine.bench.keeping import Kept  # noqa: PLC0415

    setup = {name: summary[name] for name in ("target", "device", "torch", "drafts", "ways")}
    # Other requests do not change those that are there.
    setup |= {name: getattr(load, name) for name in load.__slots__ if name not in ("requests", "timed")}
    return Kept(options.out / f"compared-{weights}.jsonl", setup | {"code": _code()})


def _code() -> str:
    """Digest of this package: another engine has not compared anything yet."""
    package, found = Path(__file__).resolve().parents[2], hashlib.sha256()
    for path in sorted(one for one in package.rglob("*") if one.suffix in CODE):
        found.update(path.read_bytes())
    return found.hexdigest()


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
