"""What a reader in a hurry takes from a report: three cards, each a word and the facts behind it. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

from harness.report import numbers, text
from harness.report.text import plain
from harness.results import Losslessness, Report
from harness.speculation import told_of

Tone = Literal["good", "fair", "bad", "plain"]
TONES: dict[str, Tone] = {"exact": "good", "near-tie": "fair", "violated": "bad"}
SHOWN = 8
NAME = 44  # characters of a target; its end tells more than the folders before it


class Card(NamedTuple):
    """A heading, the word that counts, facts, and what calls for a look."""

    title: str
    word: str
    tone: Tone
    facts: tuple[tuple[str, str], ...]
    points: tuple[str, ...] = ()


def cards(report: Report) -> tuple[Card, ...]:
    """Losslessness, audits, and what ran."""
    return lossless_card(report), audit_card(report), system_card(report)


def lossless_card(report: Report) -> Card:
    """The oracle's verdict on the run and on each arm, with the evidence in numbers."""
    found = report.losslessness
    if found is None:
        return Card("Losslessness", "not judged", "plain", (), ("the oracle did not run",))
    word = str(found.stock_verdict)
    facts = (
        ("tokens forced through stock", str(found.tokens)),
        ("not stock's argmax", str(found.mismatches)),
        ("of those near ties", str(found.near_ties)),
        ("near-tie margin", _margin(found)),
        ("rate of other tokens", _bound(found)),
        ("bitwise the engine's own ar", numbers.bitwise(found.self_exact)),
        ("stops not explained", str(len(found.stop_faults))),
    )
    points = [
        f"{text.name(arm.name)}: {numbers.stock_verdict(arm)}"
        for arm in report.arms
        if arm.losslessness is not None and arm.losslessness.stock_verdict != "exact"
    ]
    return Card("Losslessness", word, TONES.get(word, "plain"), facts, _cut(points))


def audit_card(report: Report) -> Card:
    """How many audits passed, which failed, which could give no verdict."""
    failed = [audit for audit in report.audits if audit.passed is False]
    open_ = [audit for audit in report.audits if audit.passed is None]
    broken = [one for one in report.detections if one.found]
    passed = len(report.audits) - len(failed) - len(open_)
    if not report.audits:
        return Card("Audits", "none", "bad", (), ("no audit was run: nothing speaks for this report",))
    word = f"{len(failed)} failed" if failed else "none failed"
    if broken:
        word += f", {len(broken)} drafter{'' if len(broken) == 1 else 's'} may be broken"
    facts = (
        ("passed", str(passed)),
        ("failed", str(len(failed))),
        ("without a verdict", str(len(open_))),
        ("drafters that may be broken", str(len(broken))),
    )
    points = [f"FAILED {text.name(audit.name)}: {plain(audit.detail)}" for audit in failed]
    points += [f"may be broken: {text.name(one.arm)} ({text.name(one.detector)})" for one in broken]
    points += [f"no verdict: {text.name(audit.name)}" for audit in open_]
    return Card(
        "Audits", word, "bad" if failed else "fair" if open_ or broken else "good", facts, _cut(points)
    )


def system_card(report: Report) -> Card:
    """What ran on what, so that nobody reads the numbers for another system."""
    plan, deployment = report.job.plan, report.job.deployment
    devices = {_device(report, name) for name in (arm.name for arm in plan.arms)}
    prompts = sum(drawn.drawn for drawn in report.sets)
    target = (report.models.get("target") or {}).get("source") or "unknown"
    facts = (
        ("target", text.shorten(str(target), NAME)),
        ("dtype", deployment.target.dtype),
        ("prompts", f"{prompts} of {', '.join(text.name(drawn.name) for drawn in report.sets) or 'no set'}"),
        ("batch", str(plan.measure.batch)),
        ("temperature", f"{plan.sampling.temperature:g}"),
        ("launches and blocks", f"{plan.measure.launches} and {plan.measure.blocks}"),
        ("division", report.division),
    )
    return Card("System", ", ".join(sorted(devices)) or "unknown", "plain", facts)


def _device(report: Report, arm_name: str) -> str:
    """The device of an arm: the GPU the backend names, that of this machine, or its CPU."""
    told = told_of(report, report.job.plan.arm(arm_name))
    if told.get("gpu"):
        return plain(str(told["gpu"]))
    gpus = [str(gpu.get("name")) for gpu in report.environment.get("gpus") or ()]
    if gpus and not str(told.get("device", "")).startswith("cpu"):
        return plain(gpus[0])
    cpu = (report.environment.get("cpu") or {}).get("model")
    return "unknown" if cpu is None else plain(str(cpu))


def _margin(found: Losslessness) -> str:
    return numbers.ABSENT if found.margin is None else f"{numbers.logits(found.margin.value)} logits"


def _bound(found: Losslessness) -> str:
    return "no bound" if found.error_bound is None else f"below {found.error_bound:.2g} a token (95 %)"


def _cut(points: list[str]) -> tuple[str, ...]:
    more = len(points) - SHOWN
    return tuple(points) if more <= 0 else (*points[:SHOWN], f"and {more} more, below")
