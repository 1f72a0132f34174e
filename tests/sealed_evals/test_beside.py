from __future__ import annotations

import msgspec
import pytest

from harness.errors import DataError
from harness.oracle.stored import StoredRun
from harness.records import DecodeStep, PromptLine, Response
from sealed_evals.beside import beside, pooled
from tests.sealed_evals import samples
from tests.sealed_evals.campaign import build


def line(number: int, category: str, set_name: str, text: str, tokens: int) -> PromptLine:
    prompt = msgspec.structs.replace(samples.prompt(number, category, text), set_name=set_name)
    return PromptLine(prompt=prompt, token_ids=(1,) * tokens)


def response(prompt: PromptLine, arm: str, *emitted: int) -> Response:
    steps = tuple(
        DecodeStep(num_draft_tokens=7, num_accepted_tokens=n - 1, num_emitted_tokens=n, at_ns=10)
        for n in emitted
    )
    return Response(
        prompt_id=prompt.prompt.prompt_id,
        arm=arm,
        launch=0,
        block=0,
        order=0,
        status="ok",
        prompt_tokens=len(prompt.token_ids),
        started_at=1.0,
        token_ids=(1,) * (1 + sum(emitted)),
        finish_reason="length",
        prefill_tokens=1,
        first_token_ns=5,
        end_ns=20,
        steps=steps,
    )


def run(lines: list[PromptLine], responses: list[Response]) -> StoredRun:
    job = build.make_job()
    return StoredRun(job, tuple(lines), tuple(responses), build.report(None))


def test_each_kind_stands_beside_its_set_with_lengths_and_acceptance() -> None:
    ours = line(1, "function", "generated", "Item aaaa-bbbb-cccc.\n12345", 4)
    other = line(2, "function", "generated", "Item aaaa-bbbb-cccd.\n1234567", 6)
    theirs = line(3, "code", "humaneval", "123456789", 9)
    responses = [
        response(ours, "usual", 4, 2),
        response(other, "usual", 3),
        response(theirs, "usual", 1, 1),
        response(ours, "ar", 8),
    ]

    (found,) = beside(run([ours, other, theirs], responses))

    assert (found.kind, found.like) == ("function", "humaneval")
    assert (found.generated.prompts, found.public.prompts) == (2, 1)
    assert (found.generated.characters, found.public.characters) == (6, 9)  # canaries left out
    assert (found.generated.tokens, found.public.tokens) == (5, 9)
    assert found.generated.acceptance == {"ar": 8.0, "usual": 3.0}  # 9 emitted in 3 steps
    assert found.public.acceptance == {"ar": None, "usual": 1.0}


def test_a_run_without_both_sides_is_refused() -> None:
    ours = line(1, "function", "generated", "text", 4)
    with pytest.raises(DataError, match="plan both sets in one run"):
        beside(run([ours], []))


def test_all_prompts_are_pooled_each_once_with_an_interval() -> None:
    """Sixty prompts a side whose steps emit 2 or 4 tokens; of the public ones half as many."""
    ours = [line(n, "function" if n % 2 else "chat", "generated", "text", 4) for n in range(60)]
    theirs = [line(100 + n, "code", "humaneval" if n % 2 else "mt_bench", "text", 4) for n in range(60)]
    responses = [response(one, "usual", 2, 2, *[4] * (n % 3)) for n, one in enumerate(ours)]
    responses += [response(one, "usual", 1, 1, *[2] * (n % 3)) for n, one in enumerate(theirs)]
    responses += [response(one, "ar") for one in (*ours, *theirs)]  # no step

    (found,) = pooled(run([*ours, *theirs], responses))

    assert found.arm == "usual"
    assert (found.generated.prompts, found.public.prompts, found.ratio.prompts) == (60, 60, 120)
    assert found.generated.point == pytest.approx(8 / 3)  # (2 + 2 + 4n) / (2 + n) with n of 0, 1, 2: 24 / 9
    assert found.public.point == pytest.approx(4 / 3)
    assert found.ratio.point == pytest.approx(2.0)
    # Two-sided, of the delta method: residuals tokens - 8/3 steps are -4/3, 0, 4/3; 1.96 sd / (3 sqrt 60)
    half = 1.96 * (32 / 27) ** 0.5 / 3 / 60**0.5
    assert found.generated.low == pytest.approx(8 / 3 - half, abs=0.03)
    assert found.generated.high == pytest.approx(8 / 3 + half, abs=0.03)
    assert found.ratio.low < 2.0 < found.ratio.high
    assert pooled(run([*ours, *theirs], responses)) == (found,)
