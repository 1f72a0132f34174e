"""Whether a report bears a claim out: the rules in their order, and which of them decided.

Pure. Every number is derived again from the stored responses; the report's own numbers are not read.

Rules, the first that fires decides the whole claim:
 1. complete: the claim says target, drafter, temperature and sets, and for a speed GPU and concurrency too;
 2. coherent: a stated speedup is that of its own figures, within the margin;
 3. acceptance: the target verifies the drafts of both, or both force them alike;
 4. same system: every field the claim states is told by the report, and is the same;
 5. baseline: what the claim's speedup is over is in the report, and drafts only if it is stock;
 6. valid: an invalid run gives no number;
 7. lossless: the arm's tokens are stock's own.
Then each figure on its own: 8. sets, 9. size, 10. value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from harness.claims.facts import Facts, facts_of, same_gpu, same_name
from harness.claims.measure import Evidence, measured_acceptance, measured_speedup
from harness.claims.records import FIELDS, NEEDED, NEEDED_FOR_SPEED, Figure, Sourced, Verdict
from harness.codec import Record
from harness.errors import UndefinedMetric
from harness.plan import Division
from harness.results import Interval, Report
from harness.speculation import speculation_of, told_of
from harness.stats.equivalence import has_width

LOSSLESS: tuple[Division, ...] = ("exact-greedy", "distribution")
COHERENT = 0.02  # between a stated speedup and its own figures
ROUNDED = 0.005  # claims are printed with three digits


class Finding(Record, frozen=True):
    """One figure of a claim, and what the report gives in its place."""

    what: str  # e.g. "speedup on gsm8k"
    claimed: float
    verdict: Verdict
    rule: str
    detail: str
    measured: Interval | None = None  # None: no number is given


class Verification(Record, frozen=True):
    """A claim held against a report."""

    claim: str
    who: str
    source: str
    report: str
    plan_hash: str
    arm: str
    division: Division
    verdict: Verdict
    rule: str
    detail: str
    margin: float
    findings: tuple[Finding, ...]
    unstated: tuple[str, ...]  # fields the claim leaves out: they were not compared
    assumed: tuple[str, ...]  # filled in on the reader's word


class _Ruled(NamedTuple):
    """A rule that fired."""

    verdict: Verdict
    rule: str
    detail: str


def verify(sourced: Sourced, evidence: Evidence) -> Verification:
    """Hold a claim against a run.

    Args:
        sourced: the claim, with what the reader assumed already in it.
        evidence: the run; its responses are what the numbers come from.

    Returns:
        The verdict with the rule that decided. A claim that is not comparable carries no number.
    """
    facts = facts_of(evidence.report, evidence.arm, evidence.gpu)
    ruled = next(_preconditions(sourced, evidence, facts), None)
    findings: tuple[Finding, ...] = ()
    if ruled is None:
        findings = tuple(
            finding for figure in sourced.claim.figures for finding in _figure(sourced, figure, evidence)
        )
        ruled = _overall(findings)
    report = evidence.report
    return Verification(
        claim=sourced.claim.name,
        who=sourced.who,
        source=sourced.source,
        report=report.name,
        plan_hash=report.plan.hash,
        arm=evidence.arm,
        division=facts.division,
        verdict=ruled.verdict,
        rule=ruled.rule,
        detail=ruled.detail,
        margin=sourced.margin,
        findings=findings,
        unstated=tuple(field for field in FIELDS if getattr(sourced.claim, field) is None),
        assumed=sourced.assumed,
    )


def _preconditions(sourced: Sourced, evidence: Evidence, facts: Facts) -> Iterator[_Ruled]:
    """Rules 1 to 7, as far as they fire."""
    claim, report = sourced.claim, evidence.report
    timed = any(figure.speedup is not None or figure.spec is not None for figure in claim.figures)
    needed = NEEDED_FOR_SPEED if timed else NEEDED
    missing = [field for field in needed if getattr(claim, field) is None]
    if missing or not all(figure.sets for figure in claim.figures):
        left_out = ", ".join([*missing, *([] if all(f.sets for f in claim.figures) else ["sets"])])
        yield _Ruled(
            "not comparable",
            "complete",
            f"the claim does not say {left_out}; --assume FIELD=VALUE fills it in on your word",
        )
    yield from _incoherent(claim.figures)
    if facts.division != claim.division:
        forced = {facts.division, claim.division} - set(LOSSLESS) - {"system"}
        how = f" ({'; '.join(facts.forced)})" if facts.forced else ""
        yield _Ruled(
            "not comparable",
            "acceptance" if forced else "same system",
            f"a run of division {facts.division}{how} says nothing of a claim of division {claim.division}",
        )
    for field in FIELDS:
        claimed = getattr(claim, field)
        told = facts.get(field)
        if claimed is not None and not _same(field, told, claimed):
            says = "the report does not tell" if told is None else f"the run has {told}"
            hint = "; --gpu NAME says it for servers elsewhere" if field == "gpu" and told is None else ""
            yield _Ruled("not comparable", "same system", f"{field}: claimed {claimed}, {says}{hint}")
    if timed:
        yield from _wrong_baseline(claim.over, report)
    if report.status == "invalid":
        yield _Ruled("inconclusive", "valid", f"the run is invalid: {'; '.join(report.reasons)}")
    verdict = next(
        (
            arm.losslessness.stock_verdict
            for arm in report.arms
            if arm.name == evidence.arm and arm.losslessness
        ),
        "not-judged",
    )
    if claim.division in LOSSLESS and verdict == "violated":
        yield _Ruled("refuted", "lossless", f"the tokens of arm {evidence.arm} are not stock's own")
    if claim.division == "exact-greedy" and verdict == "not-judged":
        yield _Ruled("inconclusive", "lossless", f"arm {evidence.arm} was not judged by the oracle")


def _incoherent(figures: Sequence[Figure]) -> Iterator[_Ruled]:
    for figure in figures:
        if figure.speedup is None or figure.ar is None or figure.spec is None:
            continue
        own = figure.spec / figure.ar
        if abs(own / figure.speedup - 1.0) > COHERENT:
            yield _Ruled(
                "refuted",
                "coherent",
                f"the claim contradicts itself on {_on(figure)}: {figure.spec:g} / {figure.ar:g} tokens/s = "
                f"{own:.3f}, it says {figure.speedup:g}",
            )


def _same(field: str, told: object, claimed: object) -> bool:
    if told is None:
        return False
    if field == "gpu":
        return same_gpu(str(told), str(claimed))
    if isinstance(claimed, str):
        return same_name(str(told), claimed)
    return told == claimed


def _wrong_baseline(over: str, report: Report) -> Iterator[_Ruled]:
    plan = report.job.plan
    kinds = {arm.kind: arm for arm in plan.arms}
    if over == "stock" and "stock" not in kinds:
        yield _Ruled(
            "not comparable", "baseline", "the claim is over stock speculation; the run has no stock arm"
        )
    if over == "ar":
        method = speculation_of(plan.baseline, told_of(report, plan.baseline)).get("method")
        if method != "none":
            yield _Ruled(
                "not comparable",
                "baseline",
                f"the claim is over autoregressive decoding; the baseline {plan.baseline.name} "
                + (f"drafts ({method})" if method else "does not tell whether it drafts"),
            )


def _figure(sourced: Sourced, figure: Figure, evidence: Evidence) -> Iterator[Finding]:
    """Rules 8 to 10 on the numbers of one figure."""
    claimed = figure.speedup
    if claimed is None and figure.ar is not None and figure.spec is not None:
        claimed = figure.spec / figure.ar
    drawn = {line.prompt.set_name for line in evidence.prompts}
    lacking = [name for name in figure.sets if name not in drawn]
    for what, value in (("speedup", claimed), ("acceptance length", figure.acceptance_length)):
        if value is None:
            continue
        name = f"{what} on {_on(figure)}"
        if lacking:
            detail = f"the run has no prompts of {', '.join(lacking)}; it has {', '.join(sorted(drawn))}"
            yield _plain(name, value, _Ruled("not comparable", "sets", detail))
        elif what == "speedup":
            yield _speedup(name, value, sourced, figure, evidence)
        else:
            yield _acceptance(name, value, sourced, figure, evidence)


def _speedup(name: str, claimed: float, sourced: Sourced, figure: Figure, evidence: Evidence) -> Finding:
    report = evidence.report
    drawn = {line.prompt.set_name for line in evidence.prompts}
    if report.job.plan.measure.batch > 1 and set(figure.sets) != drawn:
        detail = "the run's batches mix the claim's sets with others, whose time cannot be taken out"
        return _plain(name, claimed, _Ruled("not comparable", "sets", detail))
    found, division = measured_speedup(evidence, figure.sets, sourced.claim.over)
    if found is None:
        return _plain(name, claimed, _Ruled("inconclusive", "size", "no request succeeded in both arms"))
    ruled = _value(claimed, found, sourced.margin, division)
    if report.label == "smoke":
        detail = f"{ruled.detail}; but a smoke run is too small to stand behind a claim of speed"
        ruled = _Ruled("inconclusive", "size", detail)
    elif ruled.verdict == "confirmed" and (claimed > 1.0) and found.low <= 1.0:
        detail = f"{ruled.detail}; but the interval still holds 1, so that the run shows no speedup"
        ruled = _Ruled("inconclusive", "value", detail)
    return _plain(name, claimed, ruled, found)


def _acceptance(name: str, claimed: float, sourced: Sourced, figure: Figure, evidence: Evidence) -> Finding:
    try:
        found, division = measured_acceptance(evidence, figure.sets)
    except UndefinedMetric as error:
        return _plain(name, claimed, _Ruled("inconclusive", "size", str(error)))
    return _plain(name, claimed, _value(claimed, found, sourced.margin, division, counted=True), found)


def _value(claimed: float, found: Interval, margin: float, division: str, *, counted: bool = False) -> _Ruled:
    """Rule 10 (after MLPerf's 2 %): the point within the margin, and the interval holds the claim.

    Refuted: the claim lies outside the interval and farther than the margin. Else inconclusive. A time
    without any spread is no evidence; a count without it is exact.
    """
    off = found.point / claimed - 1.0
    text = (
        f"{division} = {found.point:.3f} [{found.low:.3f}, {found.high:.3f}], claimed {claimed:g}: "
        f"{off:+.1%}, margin {margin:.1%}"
    )
    if not counted and not has_width(found):
        return _Ruled("inconclusive", "value", f"{text}; the run shows no spread of its own")
    inside = found.low * (1.0 - ROUNDED) <= claimed <= found.high * (1.0 + ROUNDED)
    if inside and abs(off) <= margin:
        return _Ruled("confirmed", "value", text)
    if not inside and abs(off) > margin:
        return _Ruled("refuted", "value", text)
    why = (
        "the interval holds the claim, the point does not"
        if inside
        else "within the margin, not the interval"
    )
    return _Ruled("inconclusive", "value", f"{text}; {why}: measure more")


def _overall(findings: Sequence[Finding]) -> _Ruled:
    """The worst of the figures that can be compared; how many those are is said."""
    known = [finding for finding in findings if finding.verdict != "not comparable"]
    if not known:
        return _Ruled("not comparable", findings[0].rule, findings[0].detail)
    order: tuple[Verdict, ...] = ("refuted", "inconclusive", "confirmed")
    worst = min(known, key=lambda finding: order.index(finding.verdict))
    count = f"{len(known)} of {len(findings)} figures were compared"
    return _Ruled(worst.verdict, worst.rule, f"{worst.what}: {worst.detail} ({count})")


def _plain(name: str, claimed: float, ruled: _Ruled, found: Interval | None = None) -> Finding:
    return Finding(
        what=name,
        claimed=claimed,
        verdict=ruled.verdict,
        rule=ruled.rule,
        detail=ruled.detail,
        measured=found,
    )


def _on(figure: Figure) -> str:
    return " + ".join(figure.sets) or "sets it does not name"


def as_plain(found: Verification) -> object:
    """For JSON."""
    return msgspec.to_builtins(found)
