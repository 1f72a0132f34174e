"""``specpilot-harness audit``: every audit as a command of its own."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.errors import EXIT_OK, EXIT_VIOLATED, UsageError

if TYPE_CHECKING:
    from harness.plan import Job
    from harness.records import PromptSet
    from harness.results import Audit

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
LoadSets = Callable[["Job", Path | None], "Sequence[PromptSet]"]
WORDS = {True: "ok", False: "FAILED", None: "-"}


def register(commands: argparse._SubParsersAction[Parser], load_sets: LoadSets) -> None:
    """Add the command `audit`.

    Args:
        commands: of the command line.
        load_sets: the prompts that a plan draws, verified.
    """
    audit = commands.add_parser(
        "audit", help="check a report, an engine or a server for known tricks and faults"
    )
    actions = audit.add_subparsers(metavar="WHAT", required=True)

    report = actions.add_parser(
        "report",
        help="from stored responses: null and replay readings, speculation on, forced acceptance, ends, ...",
    )
    report.add_argument("report", type=Path, metavar="REPORT_DIR")
    report.set_defaults(run=_report)

    capture = actions.add_parser(
        "capture", help="what hashing logits inside the timed run costs (at most 5 %%)"
    )
    _add_plan(capture)
    capture.set_defaults(run=lambda options: _on_engine(options, load_sets))

    delay = actions.add_parser("delay", help="a delay put into every verify step must be seen by the clock")
    _add_plan(delay)
    delay.add_argument("--arm", required=True, help="of the plan")
    delay.add_argument("--ms", type=float, default=20.0, help="delay of a step (default: %(default)s)")
    delay.set_defaults(run=lambda options: _on_engine(options, load_sets))

    cache = actions.add_parser("cache", help="repeat, shuffle and nonce: does a server answer from a cache")
    cache.add_argument("--url", required=True, help="of a server that was just started")
    cache.add_argument("--count", type=int, default=16, help="prompts (default: %(default)s)")
    cache.add_argument("--max-tokens", type=int, default=16, help="a request (default: %(default)s)")
    cache.add_argument("--plan", default="gate-cpu", help="plan whose target has the server's tokenizer")
    cache.add_argument("--evals-dir", type=Path, help="folder with the original evaluation files")
    cache.set_defaults(run=lambda options: _cache(options, load_sets))

    settings = actions.add_parser("settings", help="does a server tell of forced or relaxed acceptance")
    settings.add_argument("--url", required=True)
    settings.set_defaults(run=_settings)

    client = actions.add_parser(
        "client", help="what this client itself costs, against a server that does nothing"
    )
    client.add_argument(
        "--concurrency", type=int, default=32, help="requests in flight (default: %(default)s)"
    )
    client.set_defaults(run=_client)


def _add_plan(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "plan", help="name of a built-in plan, or a .toml file; null and replay arms read it too"
    )
    command.add_argument("--prompts", type=int, default=4, help="to decode (default: %(default)s)")
    command.add_argument("--evals-dir", type=Path, help="folder with the original evaluation files")


def _report(options: argparse.Namespace) -> int:
    from msgspec.structs import replace  # noqa: PLC0415 - commands load what they need

    from harness.acceptance_audits import acceptance_audits  # noqa: PLC0415
    from harness.audits import probe_audits, run_audits  # noqa: PLC0415
    from harness.oracle.stored import load_run  # noqa: PLC0415
    from harness.server_audits import server_audits  # noqa: PLC0415

    run = load_run(options.report)
    facts = [run.report.backends]  # of the last launch: a report keeps no others
    last = max((r.launch for r in run.responses), default=0)
    of_last = [replace(r, launch=0) for r in run.responses if r.launch == last]
    judged = run.report.losslessness
    eos = (run.report.models.get("target") or {}).get("eos_token_ids") or ()
    return _tell(
        (
            *run_audits(run.job, run.responses, None if judged is None else judged.self_exact, facts),
            *server_audits(run.job, of_last, facts),
            *acceptance_audits(run.job, run.responses, facts, eos),
            *probe_audits(facts),
        )
    )


def _on_engine(options: argparse.Namespace, load_sets: LoadSets) -> int:
    from harness.live_audits import capture_overhead, delay_injection  # noqa: PLC0415
    from harness.measure.worker import SystemClock  # noqa: PLC0415
    from harness.models import resolve_model  # noqa: PLC0415
    from harness.plan import load_job  # noqa: PLC0415
    from harness.run import tokenise  # noqa: PLC0415
    from harness.tokenize import PromptTokenizer  # noqa: PLC0415

    job = load_job(options.plan)
    if hasattr(options, "arm") and options.arm not in [arm.name for arm in job.plan.arms]:
        raise UsageError(f"--arm {options.arm!r}: the plan has {', '.join(a.name for a in job.plan.arms)}")
    sets = load_sets(job, options.evals_dir)
    tokenizer = PromptTokenizer(resolve_model(job.deployment.target).path)
    prompts = tokenise(job, sets, tokenizer)[: options.prompts]
    if not prompts:
        raise UsageError("--prompts must be at least 1")
    clock = SystemClock()
    if hasattr(options, "arm"):
        return _tell((delay_injection(job, prompts, options.arm, options.ms, clock),))
    return _tell((capture_overhead(job, prompts, clock),))


def _cache(options: argparse.Namespace, load_sets: LoadSets) -> int:
    from msgspec.structs import replace  # noqa: PLC0415

    from harness.live_audits import cache_audits  # noqa: PLC0415
    from harness.load.capabilities import ask, normalise  # noqa: PLC0415
    from harness.measure.worker import SystemClock  # noqa: PLC0415
    from harness.models import resolve_model  # noqa: PLC0415
    from harness.plan import SetSpec, load_job  # noqa: PLC0415
    from harness.tokenize import PromptTokenizer  # noqa: PLC0415

    job = load_job(options.plan)
    plan = replace(job.plan, sets=(SetSpec(name="embedded", count=options.count),))
    (drawn,) = load_sets(replace(job, plan=plan), options.evals_dir)
    tokenizer = PromptTokenizer(resolve_model(job.deployment.target).path)
    base = normalise(options.url)
    ids = [tokenizer.encode(prompt) for prompt in drawn.prompts]
    return _tell(cache_audits(base, ask(base), ids, SystemClock(), max_tokens=options.max_tokens))


def _settings(options: argparse.Namespace) -> int:
    import msgspec  # noqa: PLC0415

    from harness.forced_acceptance import forced_acceptance  # noqa: PLC0415
    from harness.load.capabilities import ask, normalise  # noqa: PLC0415
    from harness.results import Audit  # noqa: PLC0415

    told = ask(normalise(options.url)).told
    found = forced_acceptance(msgspec.to_builtins(told))
    if found:
        detail = "; ".join(f"{one.kind}: {one.where}: {one.setting}" for one in found)
        return _tell((Audit(name="acceptance not forced", passed=False, detail=detail),))
    if not told.settings:
        detail = "the server tells no settings; vLLM does with VLLM_SERVER_DEV_MODE=1"
        return _tell((Audit(name="acceptance not forced", passed=None, detail=detail),))
    detail = f"{len(told.settings)} settings told, none forces or relaxes acceptance"
    return _tell((Audit(name="acceptance not forced", passed=True, detail=detail),))


def _client(options: argparse.Namespace) -> int:
    from harness.load.overhead import measure_overhead  # noqa: PLC0415
    from harness.measure.worker import SystemClock  # noqa: PLC0415
    from harness.results import Audit  # noqa: PLC0415

    if options.concurrency < 1:
        raise UsageError("--concurrency must be at least 1")
    found = measure_overhead(SystemClock(), options.concurrency)
    detail = (
        f"{found.microseconds_per_token:.0f} microseconds a token at concurrency {found.concurrency}; this "
        f"client follows {found.chunks_per_second:,.0f} chunks a second: keep a server well below"
    )
    return _tell((Audit(name="client overhead", passed=None, detail=detail),))


def _tell(audits: Sequence[Audit]) -> int:
    from harness.report.text import plain  # noqa: PLC0415

    for audit in audits:
        print(f"{plain(audit.name)}: {WORDS[audit.passed]}; {plain(audit.detail)}")
    return EXIT_VIOLATED if any(audit.passed is False for audit in audits) else EXIT_OK
