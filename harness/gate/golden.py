"""What greedy decoding must give again, exactly: tokens and step counts of every prompt and arm.

Greedy output and acceptance are functions of weights, prompts and code alone, so a golden holds on a
slower or busier machine. Times have no place in it.

History: golden/1 (0.1.0) first version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from harness.codec import Record, canonical_json, digest, from_json
from harness.errors import DataError, UsageError
from harness.oracle.stored import StoredRun, load_run
from harness.paths import RunFolder
from harness.plan import Param
from harness.records import FinishReason, PromptLine, Response, Sampling
from harness.storage import write_atomic

SHOWN = 20  # problems of one arm


class GoldenPrompt(Record, frozen=True):
    """One prompt in one arm."""

    prompt_id: str
    token_ids: tuple[int, ...]  # emitted
    finish_reason: FinishReason | None
    verify_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    steps_sha256: str  # of [drafted, accepted, emitted] of every step


class GoldenArm(Record, frozen=True):
    """One arm, prompts in the order of the run."""

    name: str
    params: dict[str, Param]
    prompts: tuple[GoldenPrompt, ...]


class Golden(Record, frozen=True):
    """A greedy run without its times."""

    schema: Literal["golden/1"]
    name: str
    target_sha256: str | None  # of the weights; None where they lie behind a server
    sampling: Sampling
    prompts_sha256: str  # of the ids of all prompts that were sent
    arms: tuple[GoldenArm, ...]


class Counts(NamedTuple):
    """What one response says that time cannot change."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    steps: tuple[tuple[int, int, int], ...]


def golden_of(run: StoredRun) -> Golden:
    """The golden of a finished run.

    Raises:
        UsageError: the run sampled, so that its tokens are a draw and no golden.
        DataError: a request failed or is missing, or an arm did not repeat itself.
    """
    plan = run.job.plan
    if not plan.sampling.greedy:
        raise UsageError(
            f"{plan.name}: `sampling.temperature` is {plan.sampling.temperature:g}; only greedy runs, at 0, "
            "can be a golden"
        )
    target = run.report.models.get("target") or {}
    return Golden(
        schema="golden/1",
        name=plan.name,
        target_sha256=target.get("weights_sha256"),
        sampling=plan.sampling,
        prompts_sha256=prompts_digest(run.prompts),
        arms=tuple(
            GoldenArm(
                name=arm.name,
                params=dict(arm.params),
                prompts=tuple(_prompt(run, arm.name, line.prompt.prompt_id) for line in run.prompts),
            )
            for arm in plan.arms
        ),
    )


def load_golden(path: Path) -> Golden:
    """A golden from its file, or from the folder of a run.

    Raises:
        DataError: there is none, or a field does not fit.
    """
    if path.is_dir():
        if not RunFolder(path).report_json.exists():
            raise DataError(f"{path} holds no report.json; give the folder of a finished run, or a golden")
        return golden_of(load_run(path))
    try:
        return from_json(path.read_bytes(), Golden, str(path))
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; record one with `gate --record {path} REPORT_DIR`"
        ) from None


def write_golden(path: Path, golden: Golden) -> None:
    """Write it, one line an arm's prompt, so that a change is a readable diff."""
    text = canonical_json(golden).decode()
    write_atomic(path, text.replace('},{"finish_reason"', '},\n{"finish_reason"') + "\n")


def differences(golden: Golden, found: Golden) -> tuple[str, ...]:
    """Everything in which a run is not the golden; empty when it is."""
    problems = [
        f"`{field}` is {_short(mine)}, the golden has {_short(theirs)}: another run, with a golden of its own"
        for field, mine, theirs in (
            ("sampling", found.sampling, golden.sampling),
            ("prompts_sha256", found.prompts_sha256, golden.prompts_sha256),
            ("target_sha256", found.target_sha256, golden.target_sha256),
        )
        if mine != theirs
    ]
    if problems:
        return tuple(problems)
    arms = {arm.name: arm for arm in found.arms}
    for arm in golden.arms:
        own = arms.pop(arm.name, None)
        if own is None:
            problems.append(f"arm {arm.name} is in the golden and not in the run")
        elif own.params != arm.params:
            problems.append(f"arm {arm.name}: `params` are {own.params}, the golden has {arm.params}")
        else:
            problems += list(_arm_differences(arm, own))
    problems += [f"arm {name} is not in the golden; record it anew" for name in arms]
    return tuple(problems)


def prompts_digest(prompts: Sequence[PromptLine]) -> str:
    """sha256 over the ids of all prompts, in order."""
    return digest([[line.prompt.prompt_id, line.token_ids] for line in prompts])


def _prompt(run: StoredRun, arm: str, prompt_id: str) -> GoldenPrompt:
    own = [r for r in run.responses if r.arm == arm and r.prompt_id == prompt_id]
    measure = run.job.plan.measure
    good = [response for response in own if response.status == "ok"]
    if len(good) != measure.launches * measure.blocks:
        raise DataError(
            f"arm {arm}, prompt {prompt_id}: {len(good)} of {measure.launches * measure.blocks} requests "
            "succeeded; a gate needs all of them"
        )
    counts = {counts_of(response) for response in good}
    if len(counts) > 1:
        raise DataError(
            f"arm {arm}, prompt {prompt_id}: tokens or steps changed between launches or blocks; greedy "
            "decoding that does not repeat itself has no golden"
        )
    (one,) = counts
    return GoldenPrompt(
        prompt_id=prompt_id,
        token_ids=one.token_ids,
        finish_reason=one.finish_reason,
        verify_steps=len(one.steps),
        num_draft_tokens=sum(drafted for drafted, _, _ in one.steps),
        num_accepted_tokens=sum(accepted for _, accepted, _ in one.steps),
        steps_sha256=digest([list(step) for step in one.steps]),
    )


def counts_of(response: Response) -> Counts:
    """The part of a response that does not hang on time."""
    return Counts(
        response.token_ids,
        response.finish_reason,
        tuple((s.num_draft_tokens, s.num_accepted_tokens, s.num_emitted_tokens) for s in response.steps),
    )


def _arm_differences(golden: GoldenArm, found: GoldenArm) -> Iterator[str]:
    shown = 0
    for old, new in zip(golden.prompts, found.prompts, strict=True):
        for text in _prompt_differences(old, new):
            if shown < SHOWN:
                yield f"arm {golden.name}, prompt {old.prompt_id}: {text}"
            shown += 1
    if shown > SHOWN:
        yield f"arm {golden.name}: and {shown - SHOWN} more"


def _prompt_differences(old: GoldenPrompt, new: GoldenPrompt) -> Iterator[str]:
    if old.token_ids != new.token_ids:
        shortest = min(len(old.token_ids), len(new.token_ids))
        at = next((n for n in range(shortest) if old.token_ids[n] != new.token_ids[n]), shortest)
        yield (
            f"position {at}: token {_at(new.token_ids, at)}, the golden has {_at(old.token_ids, at)} "
            f"({len(new.token_ids)} tokens against {len(old.token_ids)})"
        )
    if old.finish_reason != new.finish_reason:
        yield f"finish reason {new.finish_reason}, the golden has {old.finish_reason}"
    changed = [
        f"{name} {getattr(new, name)}, the golden has {getattr(old, name)}"
        for name in ("verify_steps", "num_draft_tokens", "num_accepted_tokens")
        if getattr(old, name) != getattr(new, name)
    ]
    yield from changed
    if not changed and old.steps_sha256 != new.steps_sha256:
        yield "the same counts in all, but other steps"


def _at(ids: Sequence[int], index: int) -> str:
    return str(ids[index]) if index < len(ids) else "none"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 64 else f"{text[:61]}..."
