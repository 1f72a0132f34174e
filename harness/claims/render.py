"""A verification in words, for the terminal."""

from __future__ import annotations

from harness.claims.decide import Finding, Verification
from harness.claims.records import ClaimFile
from harness.report.text import plain

FIGURES_SHOWN = 40


def in_words(found: Verification) -> str:
    """The verdict and its rule first, then each figure with its division, then what was taken for granted."""
    lines = [
        f"{found.verdict.upper()}: {plain(found.claim)} ({plain(found.who)}) against {plain(found.report)}, "
        f"arm {plain(found.arm)}",
        f"rule that decided: {found.rule}: {plain(found.detail)}",
        f"division of the run: {found.division}; margin {found.margin:.1%}; plan {found.plan_hash[:12]}",
    ]
    lines += [_line(finding) for finding in found.findings[:FIGURES_SHOWN]]
    if found.assumed:
        lines.append(f"assumed on your word: {plain(', '.join(found.assumed))}")
    if found.unstated:
        lines.append(f"the claim does not say, so it was not compared: {', '.join(found.unstated)}")
    lines.append(f"source: {plain(found.source)}")
    return "\n".join(lines)


def listing(files: dict[str, ClaimFile]) -> str:
    """Every claim by the name it is asked for."""
    lines = []
    for name, file in files.items():
        lines.append(f"{name}: {plain(file.who)}; {plain(file.source)} ({file.read})")
        for claim in file.claims:
            of = [claim.target, claim.drafter, claim.engine, claim.gpu]
            what = (
                ", ".join(str(value) for value in of if value is not None) or "nothing is said of its system"
            )
            lines.append(f"  {name}/{claim.name}: {plain(what)}; {len(claim.figures)} figures")
    return "\n".join(lines)


def _line(finding: Finding) -> str:
    return f"  {finding.what}: {finding.verdict} ({finding.rule}): {plain(finding.detail)}"
