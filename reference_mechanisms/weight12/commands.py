"""``specpilot-harness weight12``: pack, verify, unpack and inspect model folders, bench kernels and vLLM."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from reference_mechanisms.weight12.folder_manifest import Progress
    from reference_mechanisms.weight12.plugin.step_times.rounds import Plan

EXIT_OK = 0
EXIT_FAILED = 1
MEGA = 1_000_000
WIDTH = 72  # of a tensor's name beside the progress

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Run = Callable[[argparse.Namespace], int]


def register(subparsers: argparse._SubParsersAction[Parser], guard: Callable[[Run], Run]) -> None:
    """Add the command `weight12` to a command line; each sub-command sets `run`.

    Args:
        subparsers: of the command line.
        guard: turns the errors of a command into those of the command line.
    """
    weight12 = subparsers.add_parser("weight12", help="store bf16 weights in 12 bits, losslessly")
    commands = weight12.add_subparsers(metavar="ACTION", required=True)

    packing = commands.add_parser("pack", help="pack a Hugging Face folder; run again to continue")
    packing.add_argument("source", type=Path, metavar="SRC", help="folder with bf16 safetensors")
    packing.add_argument("target", type=Path, metavar="DST", help="new or empty folder")
    packing.set_defaults(run=guard(_pack))

    verifying = commands.add_parser("verify", help="hold every byte against its digest, and every weight")
    verifying.add_argument("folder", type=Path, metavar="DIR", help="a packed folder")
    verifying.add_argument("--quick", action="store_true", help="stored bytes only; decode nothing")
    verifying.set_defaults(run=guard(_verify))

    unpacking = commands.add_parser("unpack", help="give the source back, byte for byte")
    unpacking.add_argument("source", type=Path, metavar="DIR", help="a packed folder")
    unpacking.add_argument("target", type=Path, metavar="DST", help="new or empty folder")
    unpacking.set_defaults(run=guard(_unpack))

    inspecting = commands.add_parser("inspect", help="what a packed folder holds")
    inspecting.add_argument("folder", type=Path, metavar="DIR", help="a packed folder")
    inspecting.add_argument("--tensors", action="store_true", help="one line for each tensor")
    inspecting.set_defaults(run=guard(_inspect))

    timing = commands.add_parser("load-times", help="how long a packed folder takes to load here, as JSON")
    timing.add_argument("folder", type=Path, metavar="DIR", help="a packed folder")
    timing.set_defaults(run=guard(_load_times))

    benching = commands.add_parser("bench", help="time the linears of a decoder's step on this GPU")
    benching.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the report goes")
    benching.add_argument("--model", nargs="+", metavar="NAME", help="by default all; the first leads")
    benching.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 16, 32], metavar="M")
    benching.add_argument("--rounds", type=int, default=15, metavar="R", help="replays of each graph")
    benching.add_argument(
        "--variants", nargs="*", metavar="WAY", help="time other ways beside it, by default all there are"
    )
    benching.set_defaults(run=guard(_bench))

    stepping = commands.add_parser("bench-vllm", help="time a step of vLLM on this GPU, against bf16")
    stepping.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the times go")
    stepping.add_argument("--engines", nargs="+", default=["bf16", "weight12"], metavar="NAME")
    stepping.add_argument("--dflash", action="store_true", help="each engine also with a DFlash drafter")
    stepping.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32], metavar="B")
    stepping.add_argument("--rounds", type=int, default=12, metavar="R", help="interleaved between engines")
    stepping.add_argument("--seconds", type=float, default=1800, metavar="S", help="limit of the whole")
    stepping.set_defaults(run=guard(_bench_vllm))


def _pack(options: argparse.Namespace) -> int:
    from reference_mechanisms.weight12.folder import pack_folder  # noqa: PLC0415 - loads torch

    with _Line(sys.stderr) as line:
        manifest = pack_folder(options.source, options.target, line.show)
    if manifest.left_out:
        print(f"left out: {', '.join(manifest.left_out)}")
    _print_summary(options.target)
    return EXIT_OK


def _verify(options: argparse.Namespace) -> int:
    from reference_mechanisms.weight12.folder_manifest import folder_faults  # noqa: PLC0415

    with _Line(sys.stderr) as line:
        faults = list(folder_faults(options.folder, line.show, quick=options.quick))
    for fault in faults:
        print(fault)
    if faults:
        print(f"FAILED: {options.folder}: {len(faults)} faults")
        return EXIT_FAILED
    weights = "" if options.quick else ", every weight the source's"
    print(f"ok: {options.folder}: every byte as written{weights}")
    return EXIT_OK


def _unpack(options: argparse.Namespace) -> int:
    from reference_mechanisms.weight12.folder import unpack_folder  # noqa: PLC0415

    with _Line(sys.stderr) as line:
        manifest = unpack_folder(options.source, options.target, line.show)
    print(f"{options.target}: {len(manifest.shards)} weight files, each with the sha256 of its source")
    return EXIT_OK


def _inspect(options: argparse.Namespace) -> int:
    from tabulate import tabulate  # noqa: PLC0415

    from reference_mechanisms.weight12.survey import survey  # noqa: PLC0415

    if options.tensors:
        rows = [
            (line.name, line.dtype, "x".join(map(str, line.shape)), line.stored, line.bits, line.raw_rows)
            for line in survey(options.folder)
        ]
        headers = ("tensor", "type", "shape", "stored", "bits/weight", "raw rows")
        print(tabulate(rows, headers=headers, floatfmt=".3f"))
    _print_summary(options.folder)
    return EXIT_OK


def _load_times(options: argparse.Namespace) -> int:
    from reference_mechanisms.weight12.load_times import measure, to_json  # noqa: PLC0415

    print(to_json(measure(options.folder)), end="")
    return EXIT_OK


def _bench(options: argparse.Namespace) -> int:
    import torch  # noqa: PLC0415

    from reference_mechanisms.kernels.weight12.models import MODELS  # noqa: PLC0415
    from reference_mechanisms.kernels.weight12.schedule import CHOICES_BY_NAME  # noqa: PLC0415
    from reference_mechanisms.weight12.errors import CallError  # noqa: PLC0415

    names = options.model or list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise CallError(f"--model {unknown[0]}: not one of {', '.join(MODELS)}")
    variants = [] if options.variants is None else options.variants or list(CHOICES_BY_NAME)
    strange = [name for name in variants if name not in CHOICES_BY_NAME]
    if strange:
        raise CallError(f"--variants {strange[0]}: not one of {', '.join(CHOICES_BY_NAME)}")
    if options.rounds < 1 or not all(1 <= m <= 64 for m in options.tokens):
        raise CallError("--tokens are 1 to 64, --rounds at least 1")
    if not torch.cuda.is_available():
        raise CallError("bench needs a CUDA device, and torch sees none")

    from reference_mechanisms.kernels.weight12.bench_report import markdown, run, write  # noqa: PLC0415

    command = " ".join(["specpilot-harness weight12 bench", *_told(options)])
    summary = run(names, options.tokens, options.rounds, command, variants)
    write(options.out, summary)
    print(markdown(summary))
    return EXIT_FAILED if summary["other_bits"] else EXIT_OK


def _bench_vllm(options: argparse.Namespace) -> int:
    from reference_mechanisms.weight12.plugin.step_times import report, rounds  # noqa: PLC0415

    plan = _step_plan(options)
    report.read_summary(options.out)
    _require_vllm_on_cuda()
    words = ["--out", options.out, "--engines", *options.engines, *(["--dflash"] if options.dflash else [])]
    words += ["--batches", *options.batches, "--rounds", options.rounds, "--seconds", f"{options.seconds:g}"]
    command = " ".join(["specpilot-harness weight12 bench-vllm", *map(str, words)])

    def heard(found: rounds.Found) -> None:
        report.write(options.out, found, command)
        print(f"round {found.rounds} of {plan.rounds} is written", file=sys.stderr, flush=True)

    found = rounds.measure(plan, options.out / "vllm-step-logs", heard)
    report.write(options.out, found, command)
    print(report.text(found))
    return EXIT_OK


def _step_plan(options: argparse.Namespace) -> Plan:
    from reference_mechanisms.weight12.errors import CallError  # noqa: PLC0415
    from reference_mechanisms.weight12.plugin.step_times.engine_arguments import MAX_BATCH  # noqa: PLC0415
    from reference_mechanisms.weight12.plugin.step_times.rounds import Plan  # noqa: PLC0415
    from reference_mechanisms.weight12.plugin.step_times.steps import AR, DFLASH, KINDS  # noqa: PLC0415

    unknown = [name for name in options.engines if name not in KINDS]
    if unknown:
        raise CallError(f"--engines {unknown[0]}: not one of {', '.join(KINDS)}")
    if not all(1 <= batch <= MAX_BATCH for batch in options.batches):
        raise CallError(f"--batches are 1 to {MAX_BATCH}")
    if options.rounds < 1 or not 0 < options.seconds < float("inf"):
        raise CallError("--rounds are at least 1, --seconds more than 0")
    modes = (AR, DFLASH) if options.dflash else (AR,)
    return Plan(
        engines=tuple((kind, mode) for mode in modes for kind in dict.fromkeys(options.engines)),
        batches=tuple(dict.fromkeys(options.batches)),
        rounds=options.rounds,
        limit_s=options.seconds,
    )


def _require_vllm_on_cuda() -> None:
    from reference_mechanisms.weight12.errors import CallError  # noqa: PLC0415

    if importlib.util.find_spec("vllm") is None:
        raise CallError("bench-vllm needs vLLM 0.25.1 or newer: pip install vllm")

    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        raise CallError("bench-vllm needs a CUDA device, and torch sees none")


def _told(options: argparse.Namespace) -> list[str]:
    words = [
        "--out",
        str(options.out),
        "--tokens",
        *map(str, options.tokens),
        "--rounds",
        str(options.rounds),
    ]
    if options.variants is not None:
        words += ["--variants", *options.variants]
    return [*words, "--model", *options.model] if options.model else words


def _print_summary(folder: Path) -> None:
    from reference_mechanisms.weight12.survey import survey  # noqa: PLC0415

    lines = survey(folder)
    packed = [line for line in lines if line.packed]
    source, stored = sum(line.source_bytes for line in lines), sum(line.stored_bytes for line in lines)
    share = f" ({100 * stored / source:.2f} %)" if source else ""
    print(f"{folder}: {source / MEGA:.1f} MB of tensors in {stored / MEGA:.1f} MB{share}")
    weights = sum(line.source_bytes for line in packed) // 2
    if weights:
        bits = 8 * sum(line.stored_bytes for line in packed) / weights
        raw = sum(line.raw_rows for line in packed)
        print(f"packed: {len(packed)} tensors, {bits:.4f} bits a weight, {raw} raw rows")
    for reason, count in sorted(Counter(line.stored for line in lines if not line.packed).items()):
        print(f"kept: {count} tensors: {reason}")


class _Line:
    """Progress on one line of a terminal, one line a file elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live, self._shard = stream, stream.isatty(), ""

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._shard:
            print(file=self._stream)

    def show(self, progress: Progress) -> None:
        """Print how far the work is."""
        if not self._live and progress.shard == self._shard:
            return
        self._shard = progress.shard
        share = 100 * progress.done_bytes // max(1, progress.total_bytes)
        text = f"{share:3d} % {progress.shard} {progress.tensor}"
        line = f"\r{text[:WIDTH]:{WIDTH}}" if self._live else f"{share:3d} % {progress.shard}\n"
        print(line, end="", file=self._stream, flush=True)
