"""The command line: parses, calls one function of the library, prints, gives the exit code.

The composition root of the house: the one module of `harness` that may import the other packages,
inside the command that needs them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from harness.ending import ending_on_signals
from harness.errors import (
    EXIT_INVALID,
    EXIT_OK,
    EXIT_USAGE,
    EXIT_VIOLATED,
    HarnessError,
    ModelError,
    UsageError,
)

if TYPE_CHECKING:
    from harness.folder import Mode
    from harness.plan import Job
    from harness.records import Prompt, PromptLine, PromptSet
    from harness.results import Report

EPILOG = "exit codes: 0 ok, 1 violated or gate failed, 2 invalid run, 3 usage"


class _Parser(argparse.ArgumentParser):
    """argparse with the house's exit code for a wrong call, and no guessing of shortened options."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        with ending_on_signals():
            code: int = options.run(options)
    except HarnessError as error:
        print(f"specpilot-harness: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("specpilot-harness: interrupted", file=sys.stderr)
        return EXIT_INVALID
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_OK
    return code


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(prog="specpilot-harness", description=__doc__.splitlines()[0], epilog=EPILOG)
    parser.description = "Benchmark and reproducibility harness for lossless speculative decoding."
    version = f"specpilot-harness {metadata.version('specpilot-harness')}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    _add_run(commands)
    _add_compare(commands)
    _add_check(commands)
    _add_explain(commands)
    _add_schema(commands)
    _add_evals(commands)
    _add_weight12(commands)
    _add_engine(commands)
    from harness.cli_drafters import add_drafters  # noqa: PLC0415 - it is this module's other half

    add_drafters(commands, _with_harness_errors)
    from harness.cli_serving import add_serve  # noqa: PLC0415

    add_serve(commands, _with_harness_errors)
    from harness.cli_batching import add_batching  # noqa: PLC0415

    add_batching(commands, _with_harness_errors)
    from harness.cli_doctor import add_doctor  # noqa: PLC0415

    add_doctor(commands)
    from harness.claims.commands import register as register_claims  # noqa: PLC0415

    register_claims(commands, _measured)
    from harness.gate.commands import register as register_gate  # noqa: PLC0415

    register_gate(commands)
    from harness.importers.commands import register as register_importers  # noqa: PLC0415

    register_importers(commands)
    from harness.audit_commands import register as register_audits  # noqa: PLC0415

    register_audits(commands, _sets)
    from harness.index_commands import register as register_index  # noqa: PLC0415

    register_index(commands)
    from harness.render_commands import register as register_render  # noqa: PLC0415

    register_render(commands)
    from harness.grid.commands import register as register_grid  # noqa: PLC0415

    register_grid(commands, _measure_for, lambda arguments: main(["engine", "bench", *arguments]))
    from agent_loop.commands import register as register_loop  # noqa: PLC0415

    register_loop(commands)
    return parser


def _add_run(commands: argparse._SubParsersAction[_Parser]) -> None:
    run = commands.add_parser("run", help="measure the arms of a plan, check every token, write a report")
    run.add_argument("plan", help="name of a built-in plan, or a .toml file")
    run.add_argument("--out", type=Path, help="run folder (default: reports/<plan name>)")
    run.add_argument("--no-page", action="store_true", help="leave report.html to `render`: a second less")
    _add_evals_dir(run)
    _add_modes(run)
    run.set_defaults(run=_run)


def _add_evals_dir(command: _Parser) -> None:
    command.add_argument("--evals-dir", type=Path, help="folder with the original evaluation files")


def _add_modes(command: _Parser) -> None:
    which = command.add_mutually_exclusive_group()
    which.add_argument("--resume", action="store_true", help="continue an unfinished run of the same plan")
    which.add_argument("--overwrite", action="store_true", help="remove what an earlier run left in --out")


def _run(options: argparse.Namespace) -> int:
    from harness.plan import load_job  # noqa: PLC0415 - commands load only what they need

    job = load_job(options.plan)
    return _measured(job, options.out or Path("reports") / job.plan.name, options)


def _measured(job: Job, out: Path, options: argparse.Namespace) -> int:
    """Run a job with the options that every run has; its exit code."""
    mode: Mode = "resume" if options.resume else "overwrite" if options.overwrite else "new"
    return _code(_measure_for(options)(job, out, mode))


def _measure_for(options: argparse.Namespace) -> Callable[[Job, Path, Mode], Report]:
    """What runs a job into a folder and gives its report."""

    def measure(job: Job, out: Path, mode: Mode) -> Report:
        from harness.progress import RichReporter  # noqa: PLC0415
        from harness.run import execute  # noqa: PLC0415

        sets, calibration = _prompts(job, options.evals_dir)
        command, page = ("specpilot-harness", *sys.argv[1:]), not getattr(options, "no_page", False)
        with RichReporter() as reporter:
            report, closing = execute(
                job, sets, calibration, out, reporter, command=command, mode=mode, page=page
            )
        print(closing)
        return report

    return measure


def _code(report: Report) -> int:
    """How a run ends."""
    if report.status == "invalid":
        return EXIT_INVALID
    failed_audit = any(audit.passed is False for audit in report.audits)
    violated = report.losslessness is None or report.losslessness.stock_verdict == "violated"
    return EXIT_VIOLATED if violated or failed_audit else EXIT_OK


def _add_compare(commands: argparse._SubParsersAction[_Parser]) -> None:
    from harness.plan import DType  # noqa: PLC0415

    compare = commands.add_parser(
        "compare", help="compare two OpenAI-compatible servers on the same prompts, token by token"
    )
    add = compare.add_argument
    add("--stock", required=True, metavar="URL", help="server whose output defines correctness")
    add("--candidate", required=True, metavar="URL", help="server under test")
    add("--ar", metavar="URL", help="autoregressive server; the baseline, if given (else stock is)")
    add("--prompts", required=True, metavar="FILE|SET", help="JSONL file of your own, or a set's name")
    add("--field", default="prompt", help="field of the file that holds the prompt (default: %(default)s)")
    add("--count", type=int, default=24, help="prompts to draw (default: %(default)s)")
    add("--max-tokens", type=int, default=128, help="output tokens a request (default: %(default)s)")
    add("--temperature", type=float, default=0.0)
    add("--top-k", type=int, default=0, help="draw among the K best tokens; 0 is off")
    add("--top-p", type=float, default=1.0, help="draw among the best tokens that hold this share")
    add("--seed", type=int, default=0, help="of sampling, schedule and arrivals")
    add("--stop", action="append", default=[], metavar="TEXT", help="stop string; may be given often")
    add("--ignore-eos", action="store_true", help="run to max-tokens; the result is a system figure")
    add("--model", metavar="FOLDER|NAME@REVISION", help="tokenizer and configuration (default: ask stock)")
    add("--served-model", metavar="NAME", help="name of the model on the servers, if they have several")
    add("--force", choices=("server", "transformers"), default="server", help="what forces the tokens")
    add(
        "--dtype",
        choices=get_args(DType),
        default="bfloat16",
        help="of --force transformers (default: %(default)s)",
    )
    add("--launches", type=int, default=1, help="fresh client processes (default: %(default)s)")
    add("--blocks", type=int, default=4, help="passes over all prompts and arms (default: %(default)s)")
    add("--concurrency", type=int, default=1, help="requests in flight (default: %(default)s)")
    add("--request-rate", type=float, default=0.0, metavar="R", help="requests a second, Poisson; 0 is off")
    add("--ttft-ms", type=float, help="goodput limit: time to first token")
    add("--tpot-ms", type=float, help="goodput limit: time per output token")
    add("--e2e-ms", type=float, help="goodput limit: whole request")
    add("--timeout", type=float, default=600.0, metavar="S", help="a slower request has failed")
    add("--calibration-set", default="embedded", help="set for stock's own noise (default: %(default)s)")
    add("--calibration-prompts", type=int, default=6, metavar="N", help="of that set (default: %(default)s)")
    add("--out", type=Path, default=Path("reports/compare"), help="run folder (default: %(default)s)")
    _add_evals_dir(compare)
    _add_modes(compare)
    compare.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> int:
    from harness.compare import Comparison, comparison_job, try_stock  # noqa: PLC0415
    from harness.load.capabilities import ask, normalise  # noqa: PLC0415
    from harness.plan import ArmKind, StatsSpec  # noqa: PLC0415
    from harness.records import Sampling  # noqa: PLC0415

    urls: dict[ArmKind, str | None] = {
        "ar": options.ar,
        "stock": options.stock,
        "candidate": options.candidate,
    }
    try:
        sampling = Sampling(
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
            stop=tuple(options.stop),
            ignore_eos=options.ignore_eos,
        )
        wanted = Comparison(
            urls={kind: url for kind, url in urls.items() if url is not None},
            prompts=options.prompts,
            field=options.field,
            count=options.count,
            sampling=sampling,
            model=options.model,
            served=options.served_model,
            force=options.force,
            dtype=options.dtype,
            launches=options.launches,
            blocks=options.blocks,
            concurrency=options.concurrency,
            request_rate=options.request_rate,
            seed=options.seed,
            timeout_s=options.timeout,
            calibration_set=options.calibration_set,
            calibration_prompts=options.calibration_prompts,
            stats=StatsSpec(ttft_ms=options.ttft_ms, tpot_ms=options.tpot_ms, e2e_ms=options.e2e_ms),
        )
        job = comparison_job(wanted, ask(normalise(options.stock), options.served_model))
    except ValueError as error:  # a record refused a value: the message names the field
        raise UsageError(str(error)) from None
    try_stock(job)
    return _measured(job, options.out, options)


def _add_check(commands: argparse._SubParsersAction[_Parser]) -> None:
    check = commands.add_parser(
        "check", help="force the stored ids of a report through stock again and re-derive its claims"
    )
    check.add_argument("report", type=Path, metavar="REPORT_DIR")
    _add_evals_dir(check)
    check.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from harness.completeness import incomplete  # noqa: PLC0415
    from harness.oracle.check import check_report  # noqa: PLC0415
    from harness.oracle.stored import load_run  # noqa: PLC0415
    from harness.progress import RichReporter  # noqa: PLC0415

    stored = load_run(options.report)
    sets, calibration = _prompts(stored.job, options.evals_dir)
    with RichReporter() as reporter:
        problems = [
            *incomplete(options.report, stored.report),
            *_foreign_prompts(stored.prompts, sets),
            *check_report(options.report, reporter, calibration),
        ]
    for problem in problems:
        print(problem)
    if problems:
        print(f"FAILED: {options.report}: {problems[-1]}")
        return EXIT_VIOLATED
    print(f"ok: {options.report}: every stored token forced through stock again, every claim re-derived")
    return EXIT_OK


def _foreign_prompts(stored: Sequence[PromptLine], sets: Sequence[PromptSet]) -> Iterator[str]:
    """The prompts of the folder are those that the plan draws from the pinned sets."""
    drawn = {prompt.prompt_id: prompt for prompt_set in sets for prompt in prompt_set.prompts}
    for line in stored:
        if drawn.get(line.prompt.prompt_id) != line.prompt:
            yield f"prompts.jsonl: {line.prompt.prompt_id} is not a prompt that the plan draws from its sets"


def _prompts(job: Job, evals_dir: Path | None) -> tuple[tuple[PromptSet, ...], tuple[Prompt, ...]]:
    """The sets a job draws, verified, and prompts beside them for stock's own noise."""
    from harness.run import calibration_spec, without  # noqa: PLC0415
    from sealed_evals.load import load_set  # noqa: PLC0415

    sets, seed = _sets(job, evals_dir), job.plan.measure.seed
    return sets, without(load_set(calibration_spec(job), evals_dir=_evals_dir(evals_dir), seed=seed), sets)


def _sets(job: Job, evals_dir: Path | None) -> tuple[PromptSet, ...]:
    """The sets a job draws, verified."""
    from sealed_evals.load import load_set  # noqa: PLC0415

    folder, seed = _evals_dir(evals_dir), job.plan.measure.seed
    return tuple(load_set(spec, evals_dir=folder, seed=seed) for spec in job.plan.sets)


def _add_explain(commands: argparse._SubParsersAction[_Parser]) -> None:
    explain = commands.add_parser("explain", help="show where a response leaves stock, and what that means")
    explain.add_argument("report", type=Path, metavar="RUN")
    explain.add_argument("prompt", metavar="PROMPT", help="prompt id, as in responses.jsonl")
    explain.add_argument("--arm", help="only this arm (default: every arm)")
    explain.set_defaults(run=_explain)


def _explain(options: argparse.Namespace) -> int:
    from harness.oracle.explain import explain  # noqa: PLC0415

    print(explain(options.report, options.prompt, options.arm))
    return EXIT_OK


def _add_schema(commands: argparse._SubParsersAction[_Parser]) -> None:
    schema = commands.add_parser("schema", help="print the JSON Schema of a file format")
    schema.add_argument("kind", choices=("plan", "deployment", "report", "response", "claims"))
    schema.set_defaults(run=_schema)


def _schema(options: argparse.Namespace) -> int:
    from harness.schemas.kinds import schema_text  # noqa: PLC0415

    print(schema_text(options.kind))
    return EXIT_OK


def _add_evals(commands: argparse._SubParsersAction[_Parser]) -> None:
    from sealed_evals.commands import register  # noqa: PLC0415

    register(commands)


def _add_weight12(commands: argparse._SubParsersAction[_Parser]) -> None:
    from reference_mechanisms.weight12.commands import register  # noqa: PLC0415

    register(commands, _with_harness_errors)


def _add_engine(commands: argparse._SubParsersAction[_Parser]) -> None:
    from harness.cli_batching import add_engine_real  # noqa: PLC0415
    from reference_mechanisms.engine.bench.command import register  # noqa: PLC0415

    add_engine_real(register(commands, _with_harness_errors))


def _with_harness_errors(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A command of the mechanisms, its errors turned into ours."""
    from reference_mechanisms.errors import MechanismError  # noqa: PLC0415
    from reference_mechanisms.weight12.errors import CallError  # noqa: PLC0415

    def guarded(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except CallError as error:
            raise UsageError(str(error)) from None
        except MechanismError as error:
            raise ModelError(str(error)) from None

    return guarded


def _evals_dir(given: Path | None) -> Path | None:
    from harness.paths import evals_dir  # noqa: PLC0415

    return given if given is not None else evals_dir()


if __name__ == "__main__":
    sys.exit(main())
