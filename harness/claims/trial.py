"""Puts a claim to the test: on a stored run, or on two servers measured under the claim's regime."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from harness.claims.decide import Verification, verify
from harness.claims.facts import arm_for
from harness.claims.measure import Evidence
from harness.claims.records import Sourced, assume, load_claim
from harness.compare import Comparison, comparison_job, try_stock
from harness.errors import EXIT_USAGE, UsageError
from harness.load.capabilities import ask, normalise
from harness.oracle.stored import load_run
from harness.plan import ArmKind, Job, StatsSpec
from harness.records import Sampling

Measure = Callable[[Job, Path, argparse.Namespace], int]
TOP_K = 20  # as much of stock's distribution as vLLM tells, above temperature 0


def chosen_claim(options: argparse.Namespace) -> Sourced:
    """The claim that the command line names, with what it assumes."""
    if options.claim is None:
        raise UsageError("which claim? --list shows those of the package")
    words = {}
    for text in options.assume:
        field, equals, value = text.partition("=")
        if not equals or not value:
            raise UsageError(f"--assume {text!r}: write FIELD=VALUE")
        words[field] = value
    sourced = assume(load_claim(options.claim), words)
    if options.set:
        sourced = only_sets(sourced, options.set)
    if options.margin is not None:
        if not 0.0 < options.margin < 1.0:
            raise UsageError(f"--margin must lie between 0 and 1, got {options.margin}")
        sourced = with_margin(sourced, options.margin)
    return sourced


def only_sets(sourced: Sourced, sets: Sequence[str]) -> Sourced:
    """The figures of a claim on these sets alone.

    Raises:
        UsageError: the claim has none on one of them.
    """
    figures = tuple(figure for figure in sourced.claim.figures if set(figure.sets) <= set(sets))
    known = {name for figure in sourced.claim.figures for name in figure.sets}
    unknown = sorted(set(sets) - known)
    if unknown or not figures:
        raise UsageError(f"--set {', '.join(unknown or sets)}: the claim has {', '.join(sorted(known))}")
    return replace(sourced, claim=replace(sourced.claim, figures=figures))


def with_margin(sourced: Sourced, margin: float) -> Sourced:
    """The same claim held to another margin."""
    return replace(sourced, margin=margin)


def on_report(sourced: Sourced, folder: Path, options: argparse.Namespace) -> Verification:
    """Hold a claim against a finished run."""
    run = load_run(folder)
    arm = arm_for(run.report, sourced.claim.drafter, options.arm)
    return verify(sourced, Evidence(run.report, run.responses, run.prompts, arm, options.gpu))


def on_servers(sourced: Sourced, options: argparse.Namespace, measure: Measure) -> list[Verification]:
    """One run a set, under the regime of the claim; then the claim's figures on that set."""
    sets = sorted({name for figure in sourced.claim.figures for name in figure.sets})
    if not sets:
        raise UsageError("the claim names no sets; say them with --assume sets=NAME,NAME")
    if any(len(figure.sets) > 1 for figure in sourced.claim.figures):
        raise UsageError("a figure pools several sets; measure them in one plan and give --report")
    if options.prompts is not None and len(sets) > 1:
        raise UsageError(f"--prompts: the claim has {len(sets)} sets; choose one with --set")
    found = []
    for name in sets:
        job = claim_job(sourced, name, options)
        try_stock(job)
        code = measure(job, options.out / name, options)
        if code == EXIT_USAGE:
            raise UsageError(f"the run on {name} could not be made")
        found.append(on_report(only_sets(sourced, [name]), options.out / name, options))
    return found


def claim_job(sourced: Sourced, name: str, options: argparse.Namespace) -> Job:
    """The comparison that puts a claim to the test on one set."""
    claim = sourced.claim
    if claim.temperature is None:
        raise UsageError("the claim names no temperature; say it with --assume temperature=VALUE")
    urls: dict[ArmKind, str | None] = {
        "ar": options.ar,
        "stock": options.stock,
        "candidate": options.candidate,
    }
    try:
        wanted = Comparison(
            urls={kind: url for kind, url in urls.items() if url is not None},
            prompts=name if options.prompts is None else str(options.prompts),
            field=options.field,
            count=options.count,
            sampling=Sampling(
                max_tokens=claim.max_tokens or 512,
                temperature=claim.temperature,
                top_k=0 if claim.temperature == 0.0 else TOP_K,
            ),
            model=options.model,
            served=None,
            force="server",
            dtype="bfloat16",
            launches=options.launches,
            blocks=options.blocks,
            concurrency=claim.concurrency or 1,
            request_rate=0.0,
            seed=0,
            timeout_s=600.0,
            calibration_set=options.calibration_set,
            calibration_prompts=6,
            stats=StatsSpec(),
        )
        job = comparison_job(wanted, ask(normalise(options.stock)))
    except ValueError as error:
        raise UsageError(str(error)) from None
    drawn = replace(job.plan.sets[0], name=name)  # a file of one's own is the set that the claim names
    return replace(job, plan=replace(job.plan, name=f"verify-{claim.name}", sets=(drawn,)))
