"""Generated prompts beside the public sets they stand in for: lengths and acceptance, from one run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from harness.codec import Record
from harness.errors import DataError
from harness.oracle.stored import StoredRun
from harness.records import PromptLine, Response
from harness.stats.acceptance import acceptance
from sealed_evals.generator.make import KINDS


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
