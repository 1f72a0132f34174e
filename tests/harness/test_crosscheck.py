"""Acceptance of a drafter here and behind a server, put side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from harness.crosscheck import ALL, crosscheck, render
from harness.errors import UsageError
from harness.oracle.stored import StoredRun
from harness.plan import ArmKind, ArmSpec
from harness.records import Chunk, DecodeStep, Prompt, PromptLine, Response
from harness.results import Report
from tests.harness.report import build, pieces

DRAFTS = 3
OURS: dict[str, Any] = {"engine": {"checkpoints": {"stock": "x"}, "drafters": {"stock": "dflash"}}}
EMITTED: dict[str, tuple[int, ...]] = {"math/1": (4, 2), "math/2": (3, 3), "code/1": (1, 1)}
NONE: dict[str, tuple[int, ...]] = {}
SETS = {"math/1": "math", "math/2": "math", "code/1": "code"}


def response(prompt: str, arm: str, emitted: tuple[int, ...], *, server: bool, first: int = 7) -> Response:
    """One prefill token, then steps of so many; a server tells chunks, the last one empty."""
    steps = tuple(
        DecodeStep(num_draft_tokens=DRAFTS, num_accepted_tokens=n - 1, num_emitted_tokens=n, at_ns=2)
        for n in (() if server else emitted)
    )
    chunks = tuple(Chunk(num_tokens=n, at_ns=2) for n in (1, *emitted, 0))
    return Response(
        prompt_id=prompt,
        arm=arm,
        launch=0,
        block=0,
        order=0,
        status="ok",
        prompt_tokens=4,
        started_at=1.0,
        token_ids=tuple(range(first, first + 1 + sum(emitted))),
        finish_reason="length",
        prefill_tokens=0 if server else 1,
        first_token_ns=1,
        end_ns=3,
        steps=steps,
        chunks=chunks if server else (),
    )


def run(responses: tuple[Response, ...], arms: tuple[str, ...], backends: dict[str, Any]) -> StoredRun:
    made: Report = build.report(backends=backends)
    kinds: tuple[ArmKind, ...] = ("ar", "stock")
    plan = msgspec.structs.replace(
        made.job.plan,
        arms=tuple(
            ArmSpec(name=name, kind=kind, backend="a:b") for name, kind in zip(arms, kinds, strict=True)
        ),
        measure=msgspec.structs.replace(made.job.plan.measure, launches=1),
    )
    job = msgspec.structs.replace(made.job, plan=plan)
    results = tuple(msgspec.structs.replace(pieces.arm("stock"), name=name) for name in arms)
    report = msgspec.structs.replace(made, arms=results, job=job)
    lines = tuple(
        PromptLine(
            prompt=Prompt(prompt_id=one, set_name=name, category="any", turns=("x",), row_sha256="0"),
            token_ids=(1, 2, 3, 4),
        )
        for one, name in SETS.items()
    )
    return StoredRun(job=job, prompts=lines, responses=responses, report=report)


def ours() -> StoredRun:
    found = tuple(response(prompt, "stock", steps, server=False) for prompt, steps in EMITTED.items())
    return run(found, ("ar", "stock"), OURS)


def theirs(emitted: Mapping[str, tuple[int, ...]] = NONE, *, first: int = 7, drafts: int = 6) -> StoredRun:
    own = EMITTED | dict(emitted)
    found = tuple(
        response(prompt, "dflash", steps, server=True, first=first if prompt == "code/1" else 7)
        for prompt, steps in own.items()
    )
    told = {"servers": {"arms": {"dflash": {"version": "0.25.1", "counters": {"num_drafts": drafts}}}}}
    return run(found, ("ar", "dflash"), told)


def test_steps_and_chunks_of_one_drafter_give_one_length() -> None:
    found = crosscheck(ours(), theirs())
    (drafter,) = found.drafters
    assert [one.set_name for one in drafter.sets] == ["math", "code", ALL]
    math, code, every = drafter.sets
    assert (math.ours, math.theirs, math.ratio, math.agree) == (3.0, 3.0, 1.0, True)
    assert (code.ours, code.theirs) == (1.0, 1.0)
    assert every.ours == pytest.approx(14 / 6)
    assert (drafter.steps, drafter.steps_by_counters, drafter.merged) == (6, 6, 0)
    assert found.their_engines == ("0.25.1",)


def test_more_steps_for_the_same_tokens_is_a_difference() -> None:
    found = crosscheck(ours(), theirs({"math/1": (2, 2, 2)})).drafters[0]
    assert found.sets[0].ratio == pytest.approx((12 / 5) / 3.0)
    assert found.sets[0].agree is False
    assert found.agree is False
    assert "dflash: DIFFER within 2%" in render(crosscheck(ours(), theirs({"math/1": (2, 2, 2)})))


def test_the_tolerance_is_of_our_length() -> None:
    changed = theirs({"math/1": (2, 2, 2)})
    ratio = crosscheck(ours(), changed).drafters[0].sets[0].ratio
    assert ratio is not None
    assert crosscheck(ours(), changed, tolerance=1.0 - ratio + 1e-9).drafters[0].sets[0].agree is True
    assert crosscheck(ours(), changed, tolerance=1.0 - ratio - 1e-9).drafters[0].sets[0].agree is False


def test_other_tokens_are_counted_and_not_compared() -> None:
    found = crosscheck(ours(), theirs({"code/1": (2,)}, first=9)).drafters[0]
    _, code, every = found.sets
    assert (code.prompts, code.same, code.ours, code.agree) == (1, 0, None, None)
    assert (code.ours_any, code.theirs_any) == (1.0, 2.0)
    assert (every.prompts, every.same, every.ratio) == (3, 2, 1.0)


def test_merged_chunks_are_told() -> None:
    found = crosscheck(ours(), theirs({"math/1": (6,)})).drafters[0]
    assert (found.merged, found.steps, found.steps_by_counters) == (1, 5, 6)


def test_runs_that_cannot_be_compared_are_refused_by_field() -> None:
    other = theirs()
    plan = msgspec.structs.replace(
        other.job.plan, sampling=msgspec.structs.replace(other.job.plan.sampling, max_tokens=9)
    )
    report = msgspec.structs.replace(other.report, job=msgspec.structs.replace(other.job, plan=plan))
    with pytest.raises(UsageError, match=r"`max_tokens` is .* and 9"):
        crosscheck(ours(), other._replace(report=report))
    report = msgspec.structs.replace(other.report, models={"target": {"weights_sha256": "other"}})
    with pytest.raises(UsageError, match="`target`"):
        crosscheck(ours(), other._replace(report=report))
    with pytest.raises(UsageError, match="share no prompt"):
        crosscheck(ours(), other._replace(responses=()))
    with pytest.raises(UsageError, match="no arm has the name of a drafter"):
        crosscheck(ours(), ours())
