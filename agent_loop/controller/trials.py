"""Candidates as arms of one run on public rows, and their verdicts.

Several share the launches of a run. One that spoils the run for all (its parameters are refused, its
requests fail, it drafts nothing) gets its verdict and the others are run again without it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from agent_loop.campaign import Loop, Shape
from agent_loop.controller.judging import Floor, culprits, effect_over, judge
from agent_loop.executors.protocol import Executor, TrialFailed
from agent_loop.records import Candidate, Stage, Verdict
from harness.plan import ArmSpec, Job, SetSpec

PublicStage = Literal["tune", "screen", "measure"]
PUBLIC = "public"


class Bench(NamedTuple):
    """What trials need."""

    loop: Loop
    executor: Executor
    folder: Path  # of all trials
    rows: Path  # JSON lines of the public rows
    floor: Floor
    arm: Callable[[Candidate, str], ArmSpec]  # how a candidate becomes an arm of that name


def trial_job(bench: Bench, stage: Stage, shape: Shape, arms: Sequence[ArmSpec]) -> Job:
    """Stock and candidates on public rows; stages draw other rows and other orders."""
    job = bench.loop.job
    seed = int.from_bytes(hashlib.sha256(f"{bench.loop.plan.seed}/{stage}".encode()).digest()[:4]) >> 1
    plan = msgspec.structs.replace(
        job.plan,
        name=f"{bench.loop.plan.name}-{stage}",
        label="smoke",
        sets=(SetSpec(name=PUBLIC, count=shape.prompts, path=str(bench.rows.resolve()), field="turns"),),
        arms=(*job.plan.arms, *arms),
        measure=msgspec.structs.replace(
            job.plan.measure, launches=shape.launches, blocks=shape.blocks, seed=seed
        ),
    )
    return msgspec.structs.replace(job, plan=plan)


def run_trial(
    bench: Bench,
    stage: PublicStage,
    shape: Shape,
    candidates: Sequence[Candidate],
    tuned: Candidate | None = None,
) -> list[Verdict]:
    """The verdict on every candidate, in order; those that spoil a run are told first.

    Args:
        bench: what is needed.
        stage: which rows are drawn, and how strictly they are judged.
        shape: how much is measured.
        candidates: arms of one run.
        tuned: tuned stock, one of the candidates; the others are told what they gain over it, too.
    """
    alive = {f"c{number}": one for number, one in enumerate(candidates)}
    verdicts: dict[str, Verdict] = {}
    started = time.monotonic()
    while alive:
        arms = [bench.arm(one, name) for name, one in alive.items()]
        job = trial_job(bench, stage, shape, arms)
        folder = bench.folder / f"{stage}-{job.hash[:12]}"
        try:
            run = bench.executor.measure(job, folder)
        except TrialFailed as error:
            name = error.arm if error.arm in alive else None
            for bad in [name] if name is not None else list(alive):
                verdicts[bad] = _failed(alive.pop(bad), error, named=name is not None, folder=folder)
            continue
        spoilers = culprits(run.report) if run.report.status != "valid" else {}
        for name in list(alive):
            if name in spoilers:
                outcome, detail = spoilers[name]
                verdict = judge(run, name, stage, bench.loop.plan.rules, bench.floor)
                if verdict.outcome not in ("LOSSY", "LOSSY_DISTRIBUTION", "CHEAT"):
                    verdict = msgspec.structs.replace(verdict, outcome=outcome, detail=detail)
                verdicts[name] = _placed(verdict, alive.pop(name), folder)
        if spoilers:
            continue
        reference = next((name for name, one in alive.items() if tuned is not None and one is tuned), None)
        for name, one in alive.items():
            verdict = judge(run, name, stage, bench.loop.plan.rules, bench.floor)
            if reference not in (None, name) and verdict.effect is not None:
                over = effect_over(run, str(reference), name)
                verdict = msgspec.structs.replace(verdict, over_tuned=over)
            verdicts[name] = _placed(verdict, one, folder)
        break
    seconds = round((time.monotonic() - started) / max(len(candidates), 1), 3)
    return [
        msgspec.structs.replace(verdicts[f"c{number}"], seconds=seconds) for number in range(len(candidates))
    ]


def _failed(candidate: Candidate, error: TrialFailed, *, named: bool, folder: Path) -> Verdict:
    detail = error.said.removeprefix("specpilot-harness: ")[:500]
    return Verdict(
        candidate_id=candidate.id,
        stage="build",
        outcome="INVALID" if named else "INFRA",
        detail=detail,
        evidence=str(folder),
    )


def _placed(verdict: Verdict, candidate: Candidate, folder: Path) -> Verdict:
    return msgspec.structs.replace(verdict, candidate_id=candidate.id, evidence=str(folder))
