"""Generated prompts beside the public sets they stand in for: lengths and acceptance, from one run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import bootstrap

from harness.codec import Record
from harness.errors import DataError
from harness.oracle.stored import StoredRun
from harness.records import PromptLine, Response
from harness.stats.acceptance import acceptance
from sealed_evals.generator.make import KINDS

RESAMPLES = 4000


class Side(Record, frozen=True):
    """Prompts of one kind, or of one set."""

    prompts: int
    characters: float  # median, of the first turn without its canary
    tokens: float  # median, as sent
    acceptance: dict[str, float | None]  # acceptance length by arm, pooled over steps; None without a step


class Beside(Record, frozen=True):
    """A kind of generated prompts and the set it stands beside."""

    kind: str
    like: str
    generated: Side
    public: Side


class Length(Record, frozen=True):
    """Acceptance length pooled over the steps of prompts that count alike, with its 95 % interval."""

    prompts: int
    point: float
    low: float
    high: float


class Pooled(Record, frozen=True):
    """One arm on all generated prompts and on all public ones.

    The two are mixed from kinds in other proportions; `ratio` compares like with like: the geometric
    mean over kinds of generated over public.
    """

    arm: str
    generated: Length
    public: Length
    ratio: Length


def beside(run: StoredRun) -> tuple[Beside, ...]:
    """Every kind that the run holds prompts of, beside its public set.

    Args:
        run: on public sets and on public rows of a campaign, whose categories are kinds.

    Raises:
        DataError: the run holds no generated prompt with its public set.
    """
    arms = [arm.name for arm in run.job.plan.arms]
    found = []
    for kind in KINDS:
        ours = [line for line in run.prompts if line.prompt.category == kind.name]
        theirs = [line for line in run.prompts if line.prompt.set_name == kind.like]
        if ours and theirs:
            found.append(
                Beside(
                    kind=kind.name,
                    like=kind.like,
                    generated=_side(ours, run.responses, arms),
                    public=_side(theirs, run.responses, arms),
                )
            )
    if not found:
        raise DataError("this run holds no generated prompts beside public ones; plan both sets in one run")
    return tuple(found)


def pooled(run: StoredRun, seed: int = 0) -> tuple[Pooled, ...]:
    """Every arm that drafts, over all prompts, each counted once.

    Args:
        run: as of `beside`.
        seed: of the resampling of prompts, with which the intervals are made (percentiles of 4,000).
    """
    kinds = {kind.name: kind.like for kind in KINDS}
    groups = {
        line.prompt.prompt_id: line.prompt.category if line.prompt.category in kinds else line.prompt.set_name
        for line in run.prompts
    }
    found = []
    for arm in (arm.name for arm in run.job.plan.arms):
        counts = _counts([response for response in run.responses if response.arm == arm], groups)
        pairs = [(kind, like) for kind, like in kinds.items() if {kind, like} <= set(counts)]
        if pairs:
            found.append(_pool(arm, counts, pairs, np.random.default_rng(seed)))
    return tuple(found)


Floats = npt.NDArray[np.float64]


class _Draws(NamedTuple):
    """An acceptance length and what resampled prompts make of it."""

    prompts: int
    point: float
    draws: Floats

    def told(self) -> Length:
        low, high = np.quantile(self.draws, (0.025, 0.975))
        return Length(prompts=self.prompts, point=self.point, low=float(low), high=float(high))


def _counts(responses: Sequence[Response], groups: Mapping[str, str]) -> dict[str, Floats]:
    """Emitted tokens and verify steps of each prompt, [prompts, 2], by its group; of those with a step."""
    by_group: dict[str, dict[str, Floats]] = {}
    for one in responses:
        if one.status == "ok" and one.steps:
            emitted = sum(step.num_emitted_tokens for step in one.steps)
            own = by_group.setdefault(groups[one.prompt_id], {})
            own[one.prompt_id] = own.get(one.prompt_id, np.zeros(2)) + np.array([emitted, len(one.steps)])
    return {name: np.array(list(own.values())) for name, own in by_group.items() if len(own) > 1}


def _drawn(counts: Floats, rng: np.random.Generator) -> _Draws:
    done = bootstrap(
        (counts[:, 0], counts[:, 1]),
        lambda tokens, steps, axis: tokens.sum(axis) / steps.sum(axis),
        paired=True,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=rng,
    )
    tokens, steps = counts.sum(0)
    return _Draws(len(counts), float(tokens / steps), done.bootstrap_distribution)


def _pool(
    arm: str, counts: Mapping[str, Floats], pairs: Sequence[tuple[str, str]], rng: np.random.Generator
) -> Pooled:
    by_group = {name: _drawn(counts[name], rng) for pair in pairs for name in pair}
    sides = [
        np.concatenate([counts[name] for name in dict.fromkeys(side)]) for side in zip(*pairs, strict=True)
    ]
    generated, public = (_drawn(side, rng) for side in sides)
    ratios = [(by_group[kind].point / by_group[like].point) for kind, like in pairs]
    draws = [by_group[kind].draws / by_group[like].draws for kind, like in pairs]
    ratio = _Draws(
        generated.prompts + public.prompts,
        float(np.exp(np.mean(np.log(ratios)))),
        np.exp(np.mean(np.log(draws), axis=0)),
    )
    return Pooled(arm=arm, generated=generated.told(), public=public.told(), ratio=ratio.told())


def _side(lines: Sequence[PromptLine], responses: Sequence[Response], arms: Sequence[str]) -> Side:
    ids = {line.prompt.prompt_id for line in lines}
    return Side(
        prompts=len(lines),
        characters=median(len(_plain(line)) for line in lines),
        tokens=median(len(line.token_ids) for line in lines),
        acceptance={
            arm: _length([r for r in responses if r.arm == arm and r.prompt_id in ids]) for arm in arms
        },
    )


def _plain(line: PromptLine) -> str:
    first = line.prompt.turns[0]
    return first.partition("\n")[2] if first.startswith("Item ") else first


def _length(responses: Sequence[Response]) -> float | None:
    if not any(response.steps for response in responses):
        return None
    return acceptance(responses).length
