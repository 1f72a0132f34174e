"""Tables of how a run was made: sets, arms, settings, machine, telemetry, audits, files."""

from __future__ import annotations

import shlex

import msgspec

from harness.report import numbers, text
from harness.report.tables import Rows
from harness.report.text import flat, plain, told
from harness.results import Report

TELEMETRY_NOTE = (
    "foreign, own: share of the CPU time of all cores that other processes and the run itself used, 1 is all "
    "of it; max: between two neighbouring looks. overhead_share: what looking cost, in shares of one core. "
    "load_1m: processes that ran or waited, mean over a minute. period_seconds: shortest time between looks. "
    "unknown: this machine does not tell."
)


def audits(report: Report) -> Rows:
    """Checks of the run itself."""
    return [
        {
            "audit": text.name(audit.name),
            "passed": numbers.yes_no(audit.passed),
            "detail": plain(audit.detail),
        }
        for audit in report.audits
    ]


def sets(report: Report) -> Rows:
    """Evaluation sets with the hashes that seal them."""
    return [
        {
            "set": text.name(drawn.name),
            "split": text.name(drawn.split),
            "drawn": f"{drawn.drawn} of {drawn.rows}",
            "source": plain(drawn.source),
            "licence": plain(drawn.licence),
            "raw sha256": plain(drawn.raw_sha256),
            "prompts sha256": plain(drawn.prompts_sha256),
            "Merkle root": plain(drawn.merkle_root),
        }
        for drawn in report.sets
    ]


def arms_as_run(report: Report) -> Rows:
    """Every arm with its backend and parameters."""
    return [
        {
            "arm": text.name(arm.name),
            "kind": arm.kind,
            "backend": plain(arm.backend),
            "parameters": told(arm.params),
        }
        for arm in report.job.plan.arms
    ]


def command(report: Report) -> str:
    """The command line, ready to be pasted into a shell."""
    return plain(shlex.join(report.command))


def how(report: Report) -> Rows:
    """Plan, harness, models and what was asked of the backends."""
    plan = report.job.plan
    told_by = [
        (f"backend {text.name(name)}", told(_settings(facts))) for name, facts in report.backends.items()
    ]
    facts = [
        ("plan", text.name(report.plan.name)),
        ("plan hash", plain(report.plan.hash)),
        ("division", report.division),
        ("label", report.label),
        ("note", plain(plan.note) or "-"),
        *flat(report.harness, "harness"),
        *flat(report.models),
        ("deployment", told(_given(report.job.deployment))),
        ("sampling asked for", told(_given(plan.sampling))),
        ("measure", told(_given(plan.measure))),
        ("oracle", told(_given(plan.oracle))),
        ("statistics", told(_given(plan.stats))),
        *told_by,
    ]
    return [{"what": name, "value": value} for name, value in facts]


def environment(report: Report) -> Rows:
    """Machine, system and packages."""
    return [{"what": name, "value": value} for name, value in flat(report.environment) if name]


def telemetry(report: Report) -> Rows:
    """Readings over the whole run."""
    whole = {name: value for name, value in report.telemetry.items() if name != "blocks"}
    if whole.get("problem") is None:
        whole.pop("problem", None)  # no look failed: nothing to tell
    return [{"what": name, "value": value} for name, value in flat(whole) if name]


def telemetry_by_block(report: Report) -> Rows:
    """Load in the window of each block."""
    blocks = report.telemetry.get("blocks") or ()
    return [
        {text.name(str(name)): told(value) for name, value in block.items()}
        for block in blocks
        if isinstance(block, dict)
    ]


def files(report: Report) -> Rows:
    """The artefacts beside the report."""
    return [{"file": text.name(name), "sha256": plain(digest)} for name, digest in report.files.items()]


def _settings(facts: object) -> object:
    """What a backend told, without the probes of the run: those stand among the audits."""
    return {k: v for k, v in facts.items() if k != "probes"} if isinstance(facts, dict) else facts


def _given(record: object) -> dict[str, object]:
    """Fields of a plan that are set."""
    found: dict[str, object] = msgspec.to_builtins(record)
    return {
        name: {key: item for key, item in value.items() if item is not None}
        if isinstance(value, dict)
        else value
        for name, value in found.items()
        if value is not None
    }
