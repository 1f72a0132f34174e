"""``specpilot-harness batching`` and figures of real runs: where batching, benches and reports meet."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.errors import EXIT_OK, EXIT_VIOLATED, UsageError

if TYPE_CHECKING:
    from harness.records import Response
    from harness.report.real_figures import RealFigures
    from reference_mechanisms.batching.measuring.running import Watch
    from reference_mechanisms.batching.measuring.steps import Load
    from reference_mechanisms.batching.traces.recording import Recorded

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Run = Callable[[argparse.Namespace], int]
SUMMARY = "summary.json"


def add_batching(commands: argparse._SubParsersAction[Parser], guard: Callable[[Run], Run]) -> None:
    """Add the command `batching`, and `figures` of real runs.

    Args:
        commands: of the command line.
        guard: turns the errors of the mechanisms into the harness's.
    """
    from reference_mechanisms.batching.commands import register  # noqa: PLC0415
    from reference_mechanisms.batching.measuring.command import register as register_measure  # noqa: PLC0415

    actions = register(commands, guard, run_responses)
    register_measure(actions, lambda run: guard(_with_usage_errors(run)), _measured_costs)
    real = actions.add_parser(
        "real", help="put the speeds of runs on a real model into the summary.json of h200-batching"
    )
    real.add_argument("--single", type=Path, metavar="REPORT_DIR", help="run of single requests")
    real.add_argument("--batch32", type=Path, metavar="REPORT_DIR", help="run of 32 requests at a time")
    real.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the summary.json")
    real.set_defaults(run=_batching_real)


def _with_usage_errors(run: Run) -> Run:
    """What the command line got wrong, as our own error."""
    from reference_mechanisms.batching.measuring.command import MeasureError  # noqa: PLC0415
    from reference_mechanisms.serving.errors import ChoiceError  # noqa: PLC0415

    def guarded(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except (ChoiceError, MeasureError) as error:
            raise UsageError(str(error)) from None

    return guarded


def _measured_costs(
    deployment: str, params: Mapping[str, object], load: Load, watch: Watch, out: Path
) -> str:
    from harness.plan import load_deployment  # noqa: PLC0415
    from reference_mechanisms.backend import measure_costs  # noqa: PLC0415

    return measure_costs(load_deployment(deployment), params, load, watch, out)


def add_engine_real(engine: argparse._SubParsersAction[Parser]) -> None:
    """Add `real` to the commands of `engine`."""
    real = engine.add_parser("real", help="put the speeds of a run on a real model into summary.json")
    real.add_argument("report", type=Path, metavar="REPORT_DIR", help="run of single requests")
    real.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the summary.json")
    real.set_defaults(run=_engine_real)


def run_responses(folder: Path, arm: str | None) -> tuple[str, Sequence[Recorded]]:
    """The first response to each prompt of an arm that drafts.

    Args:
        folder: of a run.
        arm: None: the only one that drafts.

    Raises:
        UsageError: there is no such arm, or there are more.
        DataError: the folder holds no finished run.
    """
    from harness.oracle.stored import load_run  # noqa: PLC0415 - commands load what they need

    stored = load_run(folder)
    drafting = {one.arm for one in stored.responses if any(step.num_draft_tokens for step in one.steps)}
    if arm is None and len(drafting) == 1:
        (arm,) = drafting
    if arm not in drafting:
        raise UsageError(
            f"--arm {arm}: arms of {folder} whose verify steps with drafts are recorded: "
            f"{', '.join(sorted(drafting)) or 'none'}; name one of them"
        )
    first: dict[str, Response] = {}
    for one in sorted(stored.responses, key=lambda one: (one.launch, one.block)):
        if one.arm == arm and one.status == "ok":
            first.setdefault(one.prompt_id, one)
    plan = stored.job.plan
    return f"run {plan.name} ({stored.report.plan.hash[:12]}), arm {arm}", [
        _recorded(one) for _, one in sorted(first.items())
    ]


def _recorded(response: Response) -> Recorded:
    from reference_mechanisms.batching.traces.recording import Recorded, Step  # noqa: PLC0415

    steps = (
        Step(step.num_draft_tokens, step.num_accepted_tokens, step.num_emitted_tokens)
        for step in response.steps
    )
    return Recorded(response.prompt_tokens, response.prefill_tokens, tuple(steps))


def _batching_real(options: argparse.Namespace) -> int:
    reports = {"single": options.single, "batch32": options.batch32}
    given = {name: folder for name, folder in reports.items() if folder is not None}
    if not given:
        raise UsageError("give --single REPORT_DIR, --batch32 REPORT_DIR or both")
    found = {name: _figures(folder) for name, folder in given.items()}
    _merge(
        options.out / SUMMARY,
        {
            "real": {name: one.tokens_per_second for name, one in found.items()},
            "real_stands_on": {name: one.stands_on for name, one in found.items()},
        },
    )
    return _code(found.values())


def _engine_real(options: argparse.Namespace) -> int:
    found = _figures(options.report)
    _merge(
        options.out / SUMMARY,
        {"real_single": found.tokens_per_second, "real_single_stands_on": found.stands_on},
    )
    return _code([found])


def _figures(folder: Path) -> RealFigures:
    from harness.oracle.stored import load_run  # noqa: PLC0415
    from harness.report.real_figures import real_figures  # noqa: PLC0415

    return real_figures(load_run(folder).report)


def _merge(path: Path, told: Mapping[str, Mapping[str, object]]) -> None:
    """Put mappings into a summary.json, each beside what it already holds of other runs."""
    import json  # noqa: PLC0415

    from harness.storage import write_atomic  # noqa: PLC0415

    try:
        summary = json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise UsageError(f"{path}: no JSON ({error}); mend or remove it") from None
    if not isinstance(summary, dict):
        raise UsageError(f"{path}: no JSON object; mend or remove it")
    for key, value in told.items():
        before = summary.get(key)
        summary[key] = {**before, **value} if isinstance(before, dict) else value
    write_atomic(path, json.dumps(summary, indent=1) + "\n")
    print(f"wrote {path}")


def _code(found: Iterable[RealFigures]) -> int:
    """How a command ends whose figures stand on runs."""
    from harness.results import LOSSLESS  # noqa: PLC0415

    verdicts = [one.stands_on["stock_verdict"] for one in found]
    return EXIT_OK if all(verdict in LOSSLESS for verdict in verdicts) else EXIT_VIOLATED
