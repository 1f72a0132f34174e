"""One run from sealed prompts to a report: tokenise, launch, force, estimate, write.

Data goes one way: prompts -> responses -> verdict and estimates -> report. The command line hands
the sets in, so that this package needs to know none of the others.
"""

from __future__ import annotations

import datetime
import shlex
import time
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness import folder as run_folder
from harness.assemble import Evidence, assemble
from harness.completeness import too_few
from harness.errors import InvalidRun, UsageError
from harness.folder import Mode
from harness.measure.supervise import BlockWindow, run_launch
from harness.models import resolve_model
from harness.oracle.session import open_stock, run_oracle
from harness.paths import RunFolder
from harness.plan import Job, SetSpec
from harness.progress import Reporter
from harness.records import Prompt, PromptLine, PromptSet, Response
from harness.report.build import write_report
from harness.report.console import closing_table
from harness.results import Report
from harness.stats.speedup import check_spec
from harness.storage import file_digest, locked, write_lines
from harness.telemetry import Telemetry
from harness.tokenize import PromptTokenizer


class Measured(NamedTuple):
    """What the launches left."""

    responses: list[Response]
    facts: list[dict[str, Any]]
    windows: list[BlockWindow]


def calibration_spec(job: Job) -> SetSpec:
    """The draw that holds the run's rows of the calibration set and as many more as are needed."""
    oracle = job.plan.oracle
    drawn = [spec for spec in job.plan.sets if spec.name == oracle.calibration_set]
    count = sum(spec.count for spec in drawn) + oracle.calibration_prompts
    if drawn:  # the user's own file, too, can give both
        return msgspec.structs.replace(drawn[0], count=count)
    return SetSpec(name=oracle.calibration_set, count=count)


def without(calibration: PromptSet, sets: Sequence[PromptSet]) -> tuple[Prompt, ...]:
    """The calibration prompts that the run itself does not use."""
    used = {prompt.row_sha256 for drawn in sets for prompt in drawn.prompts}
    return tuple(prompt for prompt in calibration.prompts if prompt.row_sha256 not in used)


def execute(  # noqa: PLR0913 - what is run, and how it is told
    job: Job,
    sets: Sequence[PromptSet],
    calibration: Sequence[Prompt],
    out: Path,
    reporter: Reporter,
    *,
    command: Sequence[str],
    mode: Mode = "new",
    page: bool = True,
) -> tuple[Report, str]:
    """Run the job and write its report.

    Args:
        job: plan and deployment.
        sets: the drawn sets, verified.
        calibration: prompts disjoint from the run, for stock's own noise.
        out: run folder.
        reporter: shown the progress.
        command: argv, for the report.
        mode: what to do with what an earlier run left in `out`.
        page: whether report.html is written, too.

    Returns:
        The report and the closing table for the console.

    Raises:
        UsageError: the plan is labelled full and too small for a claim, or no interval can be made by its
            `stats`.
        HarnessError: the run could not be made; what was measured stays for --resume.
    """
    if lacking := "; ".join(too_few(job.plan)):
        raise UsageError(f"plan {job.plan.name}: {lacking}; raise it or label the plan smoke")
    check_spec(job.plan.stats)  # before anything is measured
    folder = RunFolder(out)
    with locked(out):
        run_folder.claim(folder, job, mode)
        model = resolve_model(job.deployment.target, progress=reporter.note)
        tokenizer = PromptTokenizer(model.path)
        prompts = tokenise(job, sets, tokenizer)
        write_lines(folder.prompts, prompts)
        try:
            with Telemetry() as telemetry:
                measured = _measure(job, folder, prompts, reporter)
            stock = open_stock(job, model)  # not before: it would take memory from the arms
            judged = run_oracle(job, prompts, measured.responses, calibration, tokenizer, reporter, stock)
        except KeyboardInterrupt:
            raise InvalidRun(
                f"interrupted; finished blocks are kept in {folder.partial}; "
                f"continue with: {resuming(command)}"
            ) from None
        write_lines(folder.responses, measured.responses)
        foreign = telemetry.foreign_by_block(measured.windows)
        evidence = Evidence(
            job=job,
            sets=tuple(sets),
            prompts=prompts,
            responses=measured.responses,
            facts=measured.facts,
            judged=judged,
            foreign=foreign,
            telemetry=telemetry.summary(measured.windows),
            model=model,
            tokenizer=tokenizer.describe(),
            files={path.name: file_digest(path) for path in (folder.prompts, folder.responses)},
            command=tuple(command),
            warnings=(*tokenizer.warnings, *_unwatched(job, foreign)),
        )
        report = assemble(evidence, datetime.datetime.now(datetime.UTC))
        write_report(report, folder, page=page)
        run_folder.finish(folder)
    return report, closing_table(report, folder, page=page)


def tokenise(job: Job, sets: Sequence[PromptSet], tokenizer: PromptTokenizer) -> tuple[PromptLine, ...]:
    """Token ids of every prompt of the run.

    Raises:
        InvalidRun: a prompt does not fit the context together with `sampling.max_tokens`, or two
            sets share a prompt id.
    """
    lines = tuple(
        PromptLine(prompt=prompt, token_ids=tokenizer.encode(prompt))
        for drawn in sets
        for prompt in drawn.prompts
    )
    limit, budget = job.deployment.context_length, job.plan.sampling.max_tokens
    for line in lines:
        if len(line.token_ids) + budget > limit:
            raise InvalidRun(
                f"prompt {line.prompt.prompt_id} has {len(line.token_ids)} tokens; with "
                f"`sampling.max_tokens` = {budget} it exceeds `context_length` = {limit} of "
                f"deployment {job.deployment.name}"
            )
    ids = [line.prompt.prompt_id for line in lines]
    repeated = {name for name in ids if ids.count(name) > 1}
    if repeated:
        raise InvalidRun(f"prompt ids appear twice in this run: {sorted(repeated)[:3]}")
    return lines


def resuming(command: Sequence[str]) -> str:
    """The command that continues an interrupted run."""
    kept = [word for word in command if word not in ("--overwrite", "--resume")]
    return shlex.join([*kept, "--resume"])


def _unwatched(job: Job, watched: Container[str]) -> Iterator[str]:
    """Blocks measured by an earlier process, while nobody looked at the load of the machine."""
    measure = job.plan.measure
    names = [
        f"launch {launch} block {block}"
        for launch in range(measure.launches)
        for block in range(measure.blocks)
    ]
    missing = [name for name in names if name not in watched]
    if missing:
        yield f"foreign load was not watched in {', '.join(missing)}: measured before the run was resumed"


def _measure(job: Job, folder: RunFolder, prompts: Sequence[PromptLine], reporter: Reporter) -> Measured:
    measure = job.plan.measure
    total = measure.launches * measure.blocks * len(prompts) * len(job.plan.arms)
    advance = reporter.stage(f"measuring {len(job.plan.arms)} arms", total)
    measured = Measured([], [], [])
    for launch in range(measure.launches):
        responses, facts, windows = run_launch(job, folder, len(prompts), launch, advance, time.time)
        measured.responses.extend(responses)
        measured.facts.append(facts)
        measured.windows.extend(windows)
    measured.responses.sort(key=lambda r: (r.launch, r.order))
    return measured
