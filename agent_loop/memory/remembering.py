"""From verdicts to records, and from records to what an explorer is told."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping

from agent_loop.cost_model.ceiling import CeilingModel
from agent_loop.memory.records import Evidence, Mechanism, closed_share, preconditions_for, traits_of
from agent_loop.memory.retrieval import WHOLE, Known, retrieve
from agent_loop.memory.store import Memory, ages
from agent_loop.protocols import Recalled
from agent_loop.records import Candidate, Verdict
from harness.environment import ROOT, sources_digest
from harness.plan import Job


def rememberer(
    memory: Memory,
    job: Job,
    ceiling: CeilingModel | None,
    campaign: str,
    now: Callable[[], datetime.datetime],
) -> Callable[[Candidate, Verdict], None]:
    """Puts a verdict into the memory; a second time it changes nothing."""
    traits = traits_of(job)
    gaps = gap_shares(ceiling)
    harness = sources_digest(ROOT)

    def remember(candidate: Candidate, verdict: Verdict) -> None:
        known = (row for one in memory.known(retired=True) for row in one.evidence)
        if any(row.campaign == campaign and row.mechanism == candidate.id for row in known):
            return
        mechanism = Mechanism(
            schema="mechanism/1",
            name=candidate.hypothesis.mechanism,
            gap=candidate.hypothesis.gap,
            explanation=candidate.hypothesis.explanation,
            backend=candidate.backend,
            params=candidate.params,
            patch=candidate.patch,
            # A patch brings its own door to the engine that it was found on.
            preconditions=preconditions_for(
                candidate.backend if candidate.patch is None else traits["backend"], candidate.params, traits
            ),
            derived_from=candidate.parents,
        )
        effect = verdict.effect if verdict.stage == "confirm" else None
        share = gaps.get(mechanism.gap, gaps.get(WHOLE))
        shares = None if effect is None else closed_share(effect, share)
        closed, closed_low, closed_high = shares or (None, None, None)
        row = Evidence(
            mechanism=candidate.id,
            campaign=campaign,
            deployment=f"{job.deployment.name}/{job.plan.name}",
            traits=traits,
            date=now().isoformat(timespec="seconds"),
            outcome=verdict.outcome,
            detail=verdict.detail,
            effect=effect,
            closed=closed,
            closed_low=closed_low,
            closed_high=closed_high,
            gap_share=share,
            harness=harness,
        )
        memory.add(mechanism, row)

    return remember


def gap_shares(ceiling: CeilingModel | None) -> Mapping[str, float]:
    """Share of stock's time that could go away, by component and as a whole; empty without a cost model."""
    if ceiling is None:
        return {}
    parts = {gap.component: gap.share * ceiling.closable_share for gap in ceiling.gaps}
    return {**parts, WHOLE: ceiling.closable_share}


def recaller(
    memory: Memory,
    job: Job,
    ceiling: CeilingModel | None,
    now: Callable[[], datetime.datetime],
    campaign: str | None = None,
) -> Callable[[str, int], list[Recalled]]:
    """Answers an explorer's question from the memory, by what other campaigns than its own have put there.

    A campaign that was killed and goes on is so told the same as before.
    """
    traits = traits_of(job)
    stock = next(arm for arm in job.plan.arms if arm.kind == "stock")
    gaps = gap_shares(ceiling)

    def recall(words: str, limit: int) -> list[Recalled]:
        known = [other for one in memory.known() if (other := _without(one, campaign)) is not None]
        wanted = words.lower().split()
        chosen = [
            one
            for one in known
            if all(word in f"{one.mechanism.name} {one.mechanism.explanation}".lower() for word in wanted)
            and (one.mechanism.backend, one.mechanism.params) != (stock.backend, stock.params)  # stock has it
        ]
        return [
            Recalled(
                record=match.mechanism.id,
                mechanism=match.mechanism.name,
                explanation=match.mechanism.explanation,
                backend=match.mechanism.backend,
                params=match.mechanism.params,
                patch=match.mechanism.patch,
                score=match.score,
                expected_speedup=match.expected_speedup,
                unknown=match.unknown,
                warnings=match.warnings,
            )
            for match in retrieve(chosen, traits, gaps, ages(known, now()), memory.conflicts(), limit)
        ]

    return recall


def _without(known: Known, campaign: str | None) -> Known | None:
    """A record by the evidence of other campaigns; None where there is no other."""
    left = tuple(row for row in known.evidence if row.campaign != campaign)
    return None if known.evidence and not left else known._replace(evidence=left)
