"""`specpilot-harness batching bench`, `bench-vllm` and `bench-steps`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from reference_mechanisms.batching.traces.format import Trace, TraceError, read_traces
from reference_mechanisms.errors import MechanismError

if TYPE_CHECKING:
    from reference_mechanisms.batching.bench.beside import Command
    from reference_mechanisms.batching.bench.results import About

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Run = Callable[[argparse.Namespace], int]
EXIT_OK, EXIT_FAILED = 0, 1
OWN_WORKER = "reference_mechanisms.batching.bench.own_worker"
VLLM_WORKER = "reference_mechanisms.batching.bench.vllm_worker"


def register(actions: argparse._SubParsersAction[Parser], guard: Callable[[Run], Run]) -> None:
    """Add both commands.

    Args:
        actions: of `batching`.
        guard: turns errors of a mechanism into those of the command line.
    """
    bench = actions.add_parser(
        "bench", help="tokens a second of each mechanism on a dummy target; exact or exit code 1"
    )
    _add_work(bench)
    bench.add_argument("--variants", nargs="+", metavar="NAME", help="only these (default: all)")
    bench.add_argument("--repeats", type=int, default=3, metavar="N", help="(default: %(default)s)")
    bench.add_argument(
        "--exact", type=int, default=64, metavar="N", help="requests whose logits are compared; 0: none"
    )
    bench.add_argument(
        "--tree", type=int, default=0, metavar="NODES", help="trees too, as traces with --siblings have them"
    )
    bench.set_defaults(run=guard(_bench))
    steps = actions.add_parser(
        "bench-steps", help="milliseconds of a step beside vLLM as released, both resident, timed in turn"
    )
    _add_work(steps)
    steps.add_argument("--short", type=int, default=16, metavar="TOKENS", help="of the short outputs")
    steps.add_argument("--rounds", type=int, default=5, metavar="R", help="(default: %(default)s)")
    steps.add_argument("--seconds", type=float, default=1200.0, metavar="S", help="limit of the whole")
    steps.set_defaults(run=guard(_bench_steps))
    beside = actions.add_parser("bench-vllm", help="everything on beside vLLM: all resident, timed in turn")
    _add_work(beside)
    beside.add_argument(
        "--drafts", type=int, nargs="+", default=[0, 3, 5, 7, 11, 15], metavar="K", help="to tune stock with"
    )
    beside.add_argument(
        "--tuned", nargs="+", default=[], metavar="LOAD=K", help="stock's best drafts, where they are known"
    )
    beside.add_argument(
        "--variant",
        default="everything",
        metavar="NAME",
        help="of ours, as of `bench` (default: %(default)s)",
    )
    beside.add_argument("--resident", type=int, default=3, metavar="N", help="of stock, while it is tuned")
    beside.add_argument("--rounds", type=int, default=5, metavar="R", help="(default: %(default)s)")
    beside.add_argument("--seconds", type=float, default=1200.0, metavar="S", help="limit of the whole")
    beside.set_defaults(run=guard(_bench_vllm))


def _add_work(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("traces", type=Path, help="file of acceptance, as of `batching traces`")
    add("--shape", default="qwen3-8b", metavar="NAME", help="of the target (default: %(default)s)")
    add("--weights", default="weight12", choices=["weight12", "bf16"], help="of ours (default: %(default)s)")
    add("--concurrency", type=int, nargs="+", default=[8, 32, 64], metavar="N", help="requests at a time")
    add("--per-slot", type=int, default=4, metavar="N", help="requests of the set for each of them")
    add("--costs", type=Path, metavar="FILE", help="measured table; what needs one is off without")
    add("--seed", type=int, default=0, help="of weights and prompts")
    add("--out", type=Path, required=True, metavar="DIR", help="where the results go")


def _bench(options: argparse.Namespace) -> int:
    import torch  # noqa: PLC0415 - commands load only what they need

    from reference_mechanisms.arms import MAX_NODES  # noqa: PLC0415
    from reference_mechanisms.batching.bench import own, results, running  # noqa: PLC0415
    from reference_mechanisms.batching.bench.resident import Resident  # noqa: PLC0415

    about, traces, requests = _work(options)
    if options.repeats < 1 or options.exact < 0:
        raise MechanismError("--repeats is at least 1, --exact at least 0")
    if not 0 <= options.tree <= MAX_NODES or (options.tree and about.recording.siblings is None):
        raise MechanismError(
            f"--tree takes 1 to {MAX_NODES} nodes, and traces of `batching traces --imposed` with --siblings"
        )
    if not torch.cuda.is_available():
        raise MechanismError("batching bench needs a CUDA device")
    asked = own.Asked(
        shape=options.shape,
        weights=options.weights,
        traces=str(options.traces),
        slots=max(requests),
        costs=None if options.costs is None else str(options.costs),
        seed=options.seed,
        tree=options.tree,
    )
    _say(f"{asked.shape} in {asked.weights}: loading")
    parts = own.own_parts(asked, about.recording, traces, torch.device("cuda"))
    engine = Resident(parts, about.recording, traces, seed=options.seed)
    plan = running.Plan(
        requests=requests,
        full={load: own.everything(load, options.costs) for load in requests},
        variants=tuple(options.variants or ()),
        repeats=options.repeats,
        exact=options.exact,
    )

    def heard(found: running.Ran, words: str) -> None:
        _say(words)
        results.write_mechanisms(options.out, about, torch.cuda.get_device_name(), found.timed, found.exact)

    options.out.mkdir(parents=True, exist_ok=True)
    found = running.run(engine, plan, heard)
    machine = torch.cuda.get_device_name()
    print(results.write_mechanisms(options.out, about, machine, found.timed, found.exact))
    return EXIT_FAILED if found.exact is not None and found.exact.mismatches else EXIT_OK


def _bench_steps(options: argparse.Namespace) -> int:
    from reference_mechanisms.batching.bench import beside, results  # noqa: PLC0415

    options.per_slot = 1  # all requests run from the start
    about, traces, requests = _work(options)
    shortest = min(trace.tokens for trace in traces)
    if options.rounds < 1 or not 0 < options.seconds < float("inf"):
        raise MechanismError("--rounds is at least 1, --seconds more than 0")
    if not 1 < options.short < shortest:
        raise MechanismError(f"--short: outputs have {shortest} tokens and more; give 2 to {shortest - 1}")
    _hold_machine()
    plan = beside.Plan(
        concurrencies=tuple(requests),
        requests=requests,
        drafts=(),
        rounds=options.rounds,
        limit_s=options.seconds,
    )

    def heard(found: beside.Found, words: str) -> None:
        _say(words)
        results.write_steps(options.out, about, found)

    options.out.mkdir(parents=True, exist_ok=True)
    bench = beside.Bench(plan, _commands(options, traces), options.out / "logs", heard)
    print(results.write_steps(options.out, about, bench.step_times(options.short)))
    return EXIT_OK


def _hold_machine() -> None:
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available() or importlib.util.find_spec("vllm") is None:
        raise MechanismError("this bench needs a CUDA device and vLLM 0.25.1 or newer: pip install vllm")


def _bench_vllm(options: argparse.Namespace) -> int:
    from reference_mechanisms.batching.bench import beside, results  # noqa: PLC0415

    about, traces, requests = _work(options)
    most = about.recording.drafts
    if options.rounds < 1 or options.resident < 1 or not 0 < options.seconds < float("inf"):
        raise MechanismError("--rounds and --resident are at least 1, --seconds more than 0")
    if min(options.drafts) < 0 or max(options.drafts) > most:
        raise MechanismError(f"--drafts: the traces are of {most}; give 0 to {most}")
    best = _pairs(options.tuned)
    if set(best) - set(requests) or any(not 0 <= one <= most for one in best.values()):
        raise MechanismError(f"--tuned: give LOAD=K with a load of --concurrency and a K of 0 to {most}")
    _hold_machine()
    plan = beside.Plan(
        concurrencies=tuple(requests),
        requests=requests,
        drafts=tuple(dict.fromkeys((*options.drafts, *best.values()))),
        best=best,
        rounds=options.rounds,
        resident=options.resident,
        limit_s=options.seconds,
    )

    def heard(found: beside.Found, words: str) -> None:
        _say(words)
        results.write_beside(options.out, about, traces, found)

    options.out.mkdir(parents=True, exist_ok=True)
    found = beside.Bench(plan, _commands(options, traces), options.out / "logs", heard).run()
    print(results.write_beside(options.out, about, traces, found))
    return EXIT_OK


def _commands(options: argparse.Namespace, traces: tuple[Trace, ...]) -> Command:
    """Commands of the engines' processes."""
    from reference_mechanisms.batching.bench import beside, own, shapes, stock, vllm_worker  # noqa: PLC0415

    shape, loads = shapes.shape_of(options.shape), tuple(options.concurrency)

    def command(name: str) -> list[str]:
        if name == beside.OWN:
            asked: msgspec.Struct = own.Asked(
                shape=options.shape,
                weights=options.weights,
                traces=str(options.traces),
                slots=max(loads),
                costs=None if options.costs is None else str(options.costs),
                seed=options.seed,
                variant=getattr(options, "variant", "everything"),
            )
            worker = OWN_WORKER
        else:
            released = name == beside.RELEASED
            drafts = stock.RELEASED if released else beside.drafts_of(name)
            asked = vllm_worker.Asked(
                arguments=stock.stock_arguments(shape, traces, loads, drafts, released=released),
                traces=str(options.traces),
                seed=options.seed,
                held=len(loads) > 1,
            )
            worker = VLLM_WORKER
        return [sys.executable, "-u", "-m", worker, msgspec.json.encode(asked).decode()]

    return command


def _work(options: argparse.Namespace) -> tuple[About, tuple[Trace, ...], Mapping[int, int]]:
    """What is timed, the traces, and how many requests at each load."""
    from reference_mechanisms.batching.bench.results import About  # noqa: PLC0415
    from reference_mechanisms.batching.bench.shapes import shape_of  # noqa: PLC0415

    shape_of(options.shape)
    if min(options.concurrency) < 1 or options.per_slot < 1:
        raise MechanismError("--concurrency and --per-slot are at least 1")
    recording, traces = read_traces(options.traces)
    requests = {load: load * options.per_slot for load in sorted(set(options.concurrency))}
    if max(requests.values()) > len(traces):
        raise TraceError(
            f"{options.traces}: {len(traces)} traces, and {max(requests)} requests at a time with --per-slot "
            f"{options.per_slot} need {max(requests.values())}; make more, or give a smaller --per-slot"
        )
    command = " ".join(["specpilot-harness", *sys.argv[1:]])
    about = About(command, options.shape.lower(), options.weights, options.traces, recording, options.seed)
    return about, traces, requests


def _pairs(words: list[str]) -> dict[int, int]:
    try:
        return {int(load): int(drafts) for load, drafts in (word.split("=") for word in words)}
    except ValueError:
        raise MechanismError(f"--tuned {' '.join(words)}: write LOAD=K, as 32=7") from None


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
