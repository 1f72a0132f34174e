"""R12: what a report must say before anyone checks whether it is true. Refuses the incomplete.

After MLPerf's submission checker: required fields that are not empty, counts that a claim needs, and
files that are the ones the report was made from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.packed import is_stored, stored_digest
from harness.plan import Plan
from harness.results import ArmResult, Report

LAUNCHES, BLOCKS, REQUESTS = 3, 5, 200  # R11: the least that stands behind a claim, requests for each arm
NEEDED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "harness": (("version",), ("sources_sha256",)),
    "environment": (("cpu",), ("python",), ("packages",), ("packages_sha256",), ("system", "kernel")),
    "models": (("target", "source"), ("target", "vocab_size"), ("tokenizer", "tokenizer_sha256")),
}


def incomplete(root: Path, report: Report) -> tuple[str, ...]:
    """Everything that is missing from a report or from its folder; empty when it is complete.

    Args:
        root: folder of the report.
        report: as read from it.
    """
    return tuple(f"report.json: {problem}" for problem in (*_fields(report), *_files(root, report)))


def _fields(report: Report) -> Iterator[str]:
    for name, paths in NEEDED.items():
        yield from (f"`{name}.{'.'.join(p)}` is missing" for p in paths if not _at(getattr(report, name), p))
    if not report.command:
        yield "`command` is missing"
    if _on_gpu(report) and not report.environment.get("gpus"):
        yield "`environment.gpus` is missing, though an arm ran on a GPU"
    for drawn in report.sets:
        if not (drawn.raw_sha256 and drawn.prompts_sha256 and drawn.merkle_root):
            yield f"`sets`: {drawn.name} lacks a hash: nobody can tell which prompts these were"
    if not report.audits:
        yield "`audits` is empty"
    if report.losslessness is None:
        yield "`losslessness` is missing: the oracle did not run"
    if report.status == "invalid" and not report.reasons:
        yield "`reasons` is empty, though the run is invalid"
    for arm in report.arms:
        yield from _arm(report, arm)
    if report.label == "full":
        yield from _too_small(report)


def _arm(report: Report, arm: ArmResult) -> Iterator[str]:
    if arm.failed and report.status == "valid":
        yield f"arm {arm.name}: {arm.failed} requests failed, and the run calls itself valid"
    if report.status == "valid" and arm.speedup is None:
        yield f"arm {arm.name}: `speedup` is missing from a valid run"


def too_few(plan: Plan) -> Iterator[str]:
    """What a plan labelled full lacks of a claim (R11), by field; nothing for a smoke run."""
    if plan.label == "full":
        for field, least in (("launches", LAUNCHES), ("blocks", BLOCKS)):
            if getattr(plan.measure, field) < least:
                yield f"`label` is full with {getattr(plan.measure, field)} {field}; a claim needs {least}"


def _too_small(report: Report) -> Iterator[str]:
    yield from too_few(report.job.plan)
    few = min((arm.requests for arm in report.arms), default=0)
    if few < REQUESTS:
        yield f"`label` is full with {few} requests an arm; a claim needs {REQUESTS}"


def _files(root: Path, report: Report) -> Iterator[str]:
    for name in ("prompts.jsonl", "responses.jsonl"):
        if name not in report.files:
            yield f"`files` lacks {name}"
    for name, told in report.files.items():
        path = root / Path(name).name
        if not is_stored(path):
            yield f"`files` names {name}, which is not there"
        elif stored_digest(path) != told:
            yield f"`files`: {name} is not the file that the report was made from"


def _at(value: object, path: tuple[str, ...]) -> object:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _on_gpu(report: Report) -> bool:
    told: Mapping[str, Any] = report.backends
    return report.job.deployment.device == "cuda" or any(
        isinstance(one, Mapping) and one.get("gpu") for one in told.values()
    )
