"""The same drafters in two engines: do they accept alike? Pure.

Acceptance is a function of the tokens, so the comparison is over prompts whose output is the same in both
runs; the others are counted, and the oracle of each report judges them. Our engine tells its verify steps.
A server that streams every step as it ends sends one chunk a step: the tokens of all chunks behind the
first, over their number, is its acceptance length, with the cut at a stop or at max_tokens counted as ours
is. Its own counters tell whether that holds (`steps_by_counters`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.codec import Record
from harness.errors import UsageError
from harness.oracle.stored import StoredRun
from harness.records import Response
from harness.report import numbers, text
from harness.report.summary import trained_arms
from harness.results import Report
from harness.stats.degenerate import degenerate

HEAD = (
    "| set | same output | ours | theirs | ratio | agree "
    "| ours, no repetitions | theirs | ours, all outputs | theirs |",
    "|---|---|---|---|---|---|---|---|---|---|",
)
TOLERANCE = 0.02  # of our acceptance length
ALL = "all sets"


class SetCheck(Record, frozen=True):
    """Acceptance of one drafter on one set in both engines; None where there is nothing to count."""

    set_name: str
    prompts: int  # that both runs answered
    same: int  # of those, the same tokens in both
    degenerate: int  # of the same ones, outputs that repeat themselves
    ours: float | None  # acceptance length, bonus token included, over the same ones
    theirs: float | None
    ours_without_degenerate: float | None
    theirs_without_degenerate: float | None
    ours_any: float | None  # over all prompts, the same output or not
    theirs_any: float | None
    ratio: float | None  # theirs / ours
    agree: bool | None  # the ratio is within the tolerance of 1; None: no prompt to tell by


class DrafterCheck(Record, frozen=True):
    """One drafter in both engines."""

    drafter: str
    sets: tuple[SetCheck, ...]  # each set, then all of them together
    agree: bool | None  # over all sets together
    steps: int  # of the server, by its chunks
    steps_by_counters: int | None  # by its own counters; None: it exports none
    merged: int  # chunks with more tokens than one verify step can give
    our_verdict: str  # of the oracle
    their_verdict: str


class CrossCheck(Record, frozen=True):
    """What `crosscheck` found."""

    ours: str  # name of the run
    theirs: str
    their_engines: tuple[str, ...]  # versions that the servers told
    tolerance: float
    drafters: tuple[DrafterCheck, ...]


class Counted(NamedTuple):
    """What one response says of acceptance."""

    steps: int
    tokens: int  # that the steps emitted


def crosscheck(ours: StoredRun, theirs: StoredRun, tolerance: float = TOLERANCE) -> CrossCheck:
    """Put the acceptance of a server's drafters beside that of the same drafters here.

    Args:
        ours: a run of an engine that tells verify steps, with trained drafters.
        theirs: a run of servers, whose arms are named after their drafters.
        tolerance: largest difference of acceptance lengths, as a share of ours.

    Raises:
        UsageError: the targets or the budgets differ, or no drafter or prompt is in both.
    """
    _comparable(ours.report, theirs.report)
    arms = trained_arms(ours.report)
    drafting = {arm.name for arm in theirs.job.plan.arms if arm.name in arms}
    if not drafting:
        raise UsageError(
            f"report {theirs.report.name}: no arm has the name of a drafter of {ours.report.name} "
            f"({', '.join(arms) or 'none'})"
        )
    sets = {line.prompt.prompt_id: line.prompt.set_name for line in theirs.prompts}
    found = []
    for name in (name for name in arms if name in drafting):
        own, other = _first(ours.responses, arms[name].name), _first(theirs.responses, name)
        both = [prompt for prompt in sets if prompt in own and prompt in other]
        if not both:
            raise UsageError(f"{ours.report.name} and {theirs.report.name} share no prompt; run both on one")
        by_set: dict[str, list[str]] = {}
        for prompt in both:
            by_set.setdefault(sets[prompt], []).append(prompt)
        checks = [_check(one, of, own, other, tolerance) for one, of in by_set.items()]
        checks.append(_check(ALL, both, own, other, tolerance))
        drafts = max((s.num_draft_tokens for r in own.values() for s in r.steps), default=0)
        every = [r for r in theirs.responses if r.arm == name and r.status == "ok"]
        found.append(
            DrafterCheck(
                drafter=name,
                sets=tuple(checks),
                agree=checks[-1].agree,
                steps=sum(by_chunks(response).steps for response in every),
                steps_by_counters=_counter(theirs.report, name, "num_drafts"),
                merged=sum(chunk.num_tokens > drafts + 1 for r in every for chunk in r.chunks),
                our_verdict=_verdict(ours.report, arms[name].name),
                their_verdict=_verdict(theirs.report, name),
            )
        )
    return CrossCheck(
        ours=ours.report.name,
        theirs=theirs.report.name,
        their_engines=_engines(theirs.report),
        tolerance=tolerance,
        drafters=tuple(found),
    )


def render(found: CrossCheck) -> str:
    """A Markdown table a drafter, with what the oracle says under it."""
    versions = ", ".join(found.their_engines) or "unknown version"
    lines = [
        f"{found.ours} (ours) and {found.theirs} (server, {versions}), over outputs that both have",
        "",
    ]
    for one in found.drafters:
        word = {True: "agree", False: "DIFFER", None: "could not tell"}[one.agree]
        lines += [
            f"## {one.drafter}: {word} within {found.tolerance:.0%}",
            "",
            *HEAD,
            *map(_row, one.sets),
            "",
        ]
        counted = (
            "no counters" if one.steps_by_counters is None else f"{one.steps_by_counters} by its counters"
        )
        lines += [
            f"Oracle: ours {one.our_verdict}, theirs {one.their_verdict}. Verify steps of the server: "
            f"{one.steps} by its chunks, {counted}; {one.merged} chunks hold more than a step can give.",
            "",
        ]
    return "\n".join(lines)


def by_chunks(response: Response) -> Counted:
    """Verify steps of a server's response: chunks with tokens behind the first, the prefill's."""
    tokens = [chunk.num_tokens for chunk in response.chunks if chunk.num_tokens]
    return Counted(steps=len(tokens[1:]), tokens=sum(tokens[1:]))


def by_steps(response: Response) -> Counted:
    """Verify steps as an engine told them."""
    return Counted(steps=len(response.steps), tokens=sum(step.num_emitted_tokens for step in response.steps))


def _check(
    name: str,
    prompts: Sequence[str],
    ours: Mapping[str, Response],
    theirs: Mapping[str, Response],
    tolerance: float,
) -> SetCheck:
    same = [prompt for prompt in prompts if ours[prompt].token_ids == theirs[prompt].token_ids]
    good = [prompt for prompt in same if not degenerate(ours[prompt].token_ids)]
    own = length([by_steps(ours[prompt]) for prompt in same])
    other = length([by_chunks(theirs[prompt]) for prompt in same])
    ratio = None if own is None or other is None else other / own
    return SetCheck(
        set_name=name,
        prompts=len(prompts),
        same=len(same),
        degenerate=len(same) - len(good),
        ours=own,
        theirs=other,
        ours_without_degenerate=length([by_steps(ours[prompt]) for prompt in good]),
        theirs_without_degenerate=length([by_chunks(theirs[prompt]) for prompt in good]),
        ours_any=length([by_steps(ours[prompt]) for prompt in prompts]),
        theirs_any=length([by_chunks(theirs[prompt]) for prompt in prompts]),
        ratio=ratio,
        agree=None if ratio is None else abs(ratio - 1.0) <= tolerance,
    )


def _row(one: SetCheck) -> str:
    ratio = "-" if one.ratio is None else f"{one.ratio:.4f}"
    cells = (
        text.name(one.set_name),
        f"{one.same} of {one.prompts}",
        *map(numbers.length, (one.ours, one.theirs)),
        ratio,
        {True: "yes", False: "NO", None: "-"}[one.agree],
        *map(numbers.length, (one.ours_without_degenerate, one.theirs_without_degenerate)),
        *map(numbers.length, (one.ours_any, one.theirs_any)),
    )
    return f"| {' | '.join(cells)} |"


def length(counted: Sequence[Counted]) -> float | None:
    """Acceptance length over all verify steps, each weighed alike; None without a step."""
    steps = sum(one.steps for one in counted)
    return sum(one.tokens for one in counted) / steps if steps else None


def _first(responses: Sequence[Response], arm: str) -> dict[str, Response]:
    """The first good response of an arm to each prompt."""
    found: dict[str, Response] = {}
    for response in responses:
        if response.arm == arm and response.status == "ok":
            found.setdefault(response.prompt_id, response)
    return found


def _comparable(ours: Report, theirs: Report) -> None:
    left, right = (one.models["target"].get("weights_sha256") for one in (ours, theirs))
    if left != right:
        raise UsageError(
            f"`target`: {ours.name} ran {left}, {theirs.name} {right}; compare runs of one target"
        )
    for field in ("max_tokens", "temperature"):
        a, b = (getattr(one.job.plan.sampling, field) for one in (ours, theirs))
        if a != b:
            raise UsageError(f"`{field}` is {a} in {ours.name} and {b} in {theirs.name}; run both alike")


def _verdict(report: Report, arm: str) -> str:
    judged = next(one.losslessness for one in report.arms if one.name == arm)
    return "not-judged" if judged is None else judged.stock_verdict


def _told(report: Report) -> dict[str, Mapping[str, object]]:
    """What each server said of itself, by arm; reports hold it for the last launch."""
    found: dict[str, Mapping[str, object]] = {}
    for backend in report.backends.values():
        arms = backend.get("arms") if isinstance(backend, Mapping) else None
        if isinstance(arms, Mapping):
            found |= arms
    return found


def _counter(report: Report, arm: str, name: str) -> int | None:
    if report.job.plan.measure.launches != 1:
        return None  # a report keeps the counters of one launch, the responses are those of all
    counters = _told(report).get(arm, {}).get("counters")
    value = counters.get(name) if isinstance(counters, Mapping) else None
    return value if isinstance(value, int) else None


def _engines(report: Report) -> tuple[str, ...]:
    return tuple(sorted({str(one["version"]) for one in _told(report).values() if one.get("version")}))
