"""One verdict on a change: exact counts, losslessness, audits, and times where they may decide."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from harness.codec import Record
from harness.gate.golden import differences, golden_of, load_golden
from harness.gate.timing import compare_times, why_not_timed
from harness.oracle.stored import StoredRun, load_run
from harness.results import LOSSLESS, Report

MARGIN = 0.03


class GateCheck(Record, frozen=True):
    """One thing the gate looks at."""

    name: Literal["counts", "losslessness", "audits", "times"]
    passed: bool | None  # None: not judged, the details say why
    details: tuple[str, ...]


class GateResult(Record, frozen=True):
    """Whether a change may go in."""

    passed: bool
    checks: tuple[GateCheck, ...]


def run_gate(baseline: Path, candidate: Path, margin: float = MARGIN) -> GateResult:
    """Judge a run against a golden or an earlier run.

    Args:
        baseline: a golden file, or the folder of an accepted run.
        candidate: the folder of the run with the change.
        margin: by how much slower still counts as no slower.

    Raises:
        DataError: a file cannot be read, or a run has failed requests or does not repeat itself.
        UsageError: a run sampled.
    """
    after = load_run(candidate)
    before = load_run(baseline) if baseline.is_dir() else None
    golden = load_golden(baseline) if before is None else golden_of(before)
    checks = (
        _counts(differences(golden, golden_of(after)), len(golden.arms), len(after.prompts)),
        _losslessness(after.report),
        _audits(after.report),
        _times(before, after, margin),
    )
    return GateResult(passed=all(check.passed is not False for check in checks), checks=checks)


def _counts(problems: tuple[str, ...], arms: int, prompts: int) -> GateCheck:
    fine = (
        f"tokens, verify steps, drafted and accepted tokens are the golden's: {arms} arms, {prompts} prompts"
    )
    return GateCheck(name="counts", passed=not problems, details=problems or (fine,))


def _losslessness(report: Report) -> GateCheck:
    """Every arm's tokens are stock's own, in the run that is judged."""
    found = report.losslessness
    if found is None:
        return GateCheck(name="losslessness", passed=False, details=("the oracle did not run",))
    bad = tuple(
        f"arm {arm.name}: {arm.losslessness.stock_verdict if arm.losslessness else 'not judged'}"
        for arm in report.arms
        if arm.losslessness is None or arm.losslessness.stock_verdict not in LOSSLESS
    )
    return GateCheck(name="losslessness", passed=not bad, details=(*bad, found.statement))


def _audits(report: Report) -> GateCheck:
    failed = tuple(f"{audit.name}: {audit.detail}" for audit in report.audits if audit.passed is False)
    return GateCheck(
        name="audits", passed=not failed, details=failed or (f"none of {len(report.audits)} failed",)
    )


def _times(before: StoredRun | None, after: StoredRun, margin: float) -> GateCheck:
    reason = why_not_timed(before, after)
    if reason is not None or before is None:
        return GateCheck(name="times", passed=None, details=(f"not judged: {reason}",))
    found = compare_times(before, after, margin)
    details = tuple(f"arm {one.arm}: {one.detail}" for one in found)
    return GateCheck(name="times", passed=all(one.passed for one in found), details=details)
