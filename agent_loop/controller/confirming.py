"""A confirmation: the slot is written down, another process spends an unseen shard, one line comes back.

The slot is spent before the process starts. A controller that was killed in between looks for the line
that the process left; where there is none the slot is lost, and the candidate may take another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from agent_loop.controller.database import Database
from agent_loop.controller.judging import below_floor, broken_guardrail, effect, lossy
from agent_loop.controller.trials import Bench
from agent_loop.executors.protocol import ConfirmRequest, TrialFailed
from agent_loop.records import Candidate, Effect, Outcome, Verdict
from harness.oracle.stored import StoredRun
from harness.results import ArmResult

CANDIDATE = "candidate"  # the arm's name in a confirmation
LOST = "lost: the process was killed before it said a verdict"
OUTCOMES: dict[str, Outcome] = {
    "failed": "INCOMPLETE",
    "invalid": "INVALID",
    "violated": "LOSSY",
    "audit": "CHEAT",
    "not-faster": "NO_GAIN",
}


class Confirming(NamedTuple):
    """What a confirmation needs."""

    bench: Bench
    database: Database
    unseen: Path
    keys: Path
    at: Callable[[Literal["slot-opened", "slot-answered", "slot-closed"]], None]


def confirm(desk: Confirming, candidate: Candidate) -> Verdict:
    """The verdict on unseen rows; UNPROVEN where no slot is left."""
    started = time.monotonic()
    rules, database = desk.bench.loop.plan.rules, desk.database
    arm = desk.bench.arm(candidate, CANDIDATE)
    request = ConfirmRequest(
        schema="candidate/1", name=candidate.name, backend=arm.backend, params=arm.params
    )
    line: str | None = None
    for slot in database.slots():
        if slot.candidate != candidate.id:
            continue
        line = slot.line
        if line is None:
            line = desk.bench.executor.answer(_folder(desk, slot.number)) or LOST
            database.close_slot(slot.number, line)
        if line == LOST:
            line = None
    if line is None:
        if len(database.slots()) >= rules.confirm_slots:
            return _verdict(candidate, "UNPROVEN", "no confirm slot was left", rules.level)
        number = database.open_slot(candidate, rules.level)
        desk.at("slot-opened")
        try:
            line = desk.bench.executor.confirm(request, _folder(desk, number), desk.unseen, desk.keys)
        except TrialFailed as error:
            line = f"none: {error.said[:300]}"
        desk.at("slot-answered")
        database.close_slot(number, line)
        desk.at("slot-closed")
    run = None if line.startswith("none") else desk.bench.executor.evidence(request, desk.unseen, desk.keys)
    outcome, detail = _outcome(desk, line, run)
    found = None if run is None else _effect(run)
    return _verdict(candidate, outcome, detail, rules.level, found, time.monotonic() - started, run)


def _outcome(desk: Confirming, line: str, run: StoredRun | None) -> tuple[Outcome, str]:
    if line.startswith("none"):
        return "INFRA", line
    if run is not None:
        own, theirs = ([r for r in run.responses if r.arm == name] for name in (CANDIDATE, "stock"))
        quick = below_floor(own, theirs, desk.bench.floor)
        if quick is not None:
            return "BELOW_CEILING", "an unseen prompt was answered faster than physics allows"
    arms = {} if run is None else {one.name: one for one in run.report.arms}
    mine, stock = arms.get(CANDIDATE), arms.get("stock")
    if line == "accept":
        rules = desk.bench.loop.plan.rules
        worse = None if mine is None or stock is None else broken_guardrail(mine, stock, rules)
        if worse is not None:
            return "REGRESSION", f"faster on unseen rows, but {worse}"
        return "ACCEPT", "faster than stock on unseen rows, every token stock's"
    reason = line.removeprefix("reject: ")
    if reason == "violated" and run is not None and mine is not None:
        return _lossy(run, mine)
    return OUTCOMES.get(reason, "INVALID"), f"rejected on unseen rows: {reason}"


def _lossy(run: StoredRun, arm: ArmResult) -> tuple[Outcome, str]:
    """A whole run was refused for its tokens; the candidate is guilty only of its own."""
    if arm.losslessness is not None and arm.losslessness.stock_verdict == "violated":
        outcome, detail = lossy(run, arm)
        return outcome, f"rejected on unseen rows: {detail}"
    return (
        "INVALID",
        "rejected on unseen rows: no token of the candidate is known to be wrong, but not all were judged",
    )


def _effect(run: StoredRun) -> Effect | None:
    arm = next((one for one in run.report.arms if one.name == CANDIDATE), None)
    return None if arm is None else effect(run.report, arm)


def _folder(desk: Confirming, number: int) -> Path:
    return desk.bench.folder / f"confirm-{number:03}"


def _verdict(
    candidate: Candidate,
    outcome: Outcome,
    detail: str,
    alpha: float,
    found: Effect | None = None,
    seconds: float = 0.0,
    run: StoredRun | None = None,
) -> Verdict:
    told = None if run is None else run.report.losslessness
    return Verdict(
        candidate_id=candidate.id,
        stage="confirm",
        outcome=outcome,
        detail=detail,
        effect=found,
        tokens=0 if told is None else told.tokens,
        mismatches=0 if told is None else told.mismatches,
        near_ties=0 if told is None else told.near_ties,
        alpha=alpha,
        seconds=round(seconds, 3),
    )
