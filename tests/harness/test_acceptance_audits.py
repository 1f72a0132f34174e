"""Imposed acceptance looks alike on all texts; outputs end where they must; settings give tricks away."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from harness.acceptance_audits import acceptance_audits, ends, hangs_on_prompt, unforced
from harness.forced_acceptance import forced_acceptance, kind_of
from harness.plan import ArmSpec
from harness.records import DecodeStep, Response, Sampling
from tests.harness.fakes import BACKEND, make_job

ARM = ArmSpec(name="stock", kind="stock", backend=BACKEND, params={"drafts": 4})


def response(prompt: int, accepted: list[int], **fields: Any) -> Response:
    steps = tuple(
        DecodeStep(num_draft_tokens=4, num_accepted_tokens=a, num_emitted_tokens=a + 1, at_ns=10 * (n + 2))
        for n, a in enumerate(accepted)
    )
    emitted = 1 + sum(a + 1 for a in accepted)
    given = {
        "prompt_id": f"own/p{prompt}",
        "arm": "stock",
        "launch": 0,
        "block": 0,
        "order": prompt,
        "status": "ok",
        "prompt_tokens": 3,
        "started_at": 1.0,
        "token_ids": tuple(range(10, 10 + emitted)),
        "finish_reason": "length",
        "prefill_tokens": 1,
        "first_token_ns": 10,
        "end_ns": 10_000,
        "steps": steps,
    }
    return Response(**{**given, **fields})


def drawn(rates: list[float], seed: int = 0) -> list[Response]:
    """Forty steps a prompt; drafts accepted one after another at the prompt's own rate."""
    rng = random.Random(seed)  # noqa: S311 - made-up data

    def step(rate: float) -> int:
        return next((n for n in range(4) if rng.random() >= rate), 4)

    return [response(n, [step(rate) for _ in range(40)]) for n, rate in enumerate(rates)]


def test_acceptance_that_differs_between_texts_hangs_on_them() -> None:
    found = hangs_on_prompt(ARM, drawn([0.3, 0.5, 0.7, 0.9] * 3))
    assert found.passed is True


@pytest.mark.parametrize("seed", range(5))
def test_imposed_acceptance_is_alike_on_all_texts_and_gets_no_pass(seed: int) -> None:
    found = hangs_on_prompt(ARM, drawn([0.7] * 12, seed))
    assert found.passed is None
    assert "forced acceptance looks like" in found.detail


def test_few_steps_say_nothing() -> None:
    assert "too few" in hangs_on_prompt(ARM, drawn([0.1, 0.9])).detail


def test_the_pass_is_rarely_given_by_chance() -> None:
    passed = [hangs_on_prompt(ARM, drawn([0.6] * 10, seed)).passed for seed in range(100)]
    assert passed.count(True) <= 5  # 1 % nominal; accepted counts are no normal numbers


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"speculative_config.rejection_sample_method": "synthetic"}, "synthetic"),
        ({"rejection_sample_method": "standard", "synthetic_acceptance_length": None}, None),
        ({"env": "A=1 SGLANG_SIMULATE_ACC_LEN=3.5"}, "synthetic"),
        ({"arguments": "--speculative-config '{\"synthetic_acceptance_rates\": [0.9, 0.8]}'"}, "synthetic"),
        ({"environment": "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS=2"}, "synthetic"),
        ({"environment": "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS=0"}, None),
        ({"arguments": "--spec-synthetic-acceptance-length 4"}, "synthetic"),
        ({"speculative_accept_threshold_single": 0.9}, "relaxed"),
        ({"speculative_accept_threshold_single": 1.0, "speculative_accept_threshold_acc": 1.0}, None),
        ({"use_relaxed_acceptance_for_thinking": True}, "relaxed"),
        ({"use_relaxed_acceptance_for_thinking": False, "relaxed_topk": None}, None),
        ({"arguments": "--num-speculative-tokens 7", "list": ["--model", "synthetic-data-model"]}, None),
    ],
)
def test_settings_of_every_engine_are_read(settings: dict[str, Any], kind: str | None) -> None:
    assert kind_of(forced_acceptance(settings)) == kind


def test_an_arm_is_read_by_its_parameters_and_by_its_servers_words() -> None:
    assert unforced(ARM, {BACKEND: {"engine": "scripted"}}).passed is True
    forced = replace(ARM, params={"environment": "SGLANG_SIMULATE_ACC_LEN=4"})
    assert unforced(forced, {}).passed is False
    told = {
        "arms": {"stock": {"told": {"settings": {"speculative_config.rejection_sample_method": "synthetic"}}}}
    }
    found = unforced(ARM, {BACKEND: told})
    assert found.passed is False
    assert "synthetic acceptance by told.settings" in found.detail


@pytest.mark.parametrize(
    ("fields", "passed", "words"),
    [
        ({}, True, "end with"),
        ({"finish_reason": "stop", "eos": 14}, True, "end with"),  # the last token
        ({"eos": 12}, False, "1 responses go on after an EOS"),
        ({"max_tokens": 4}, False, "1 exceed 4 tokens"),
        ({"max_tokens": 9}, False, "1 say 'length' before it"),
        ({"eos": 12, "ignore_eos": True}, True, "end with"),
    ],
)
def test_outputs_end_at_their_eos_or_at_the_budget(fields: dict[str, Any], passed: bool, words: str) -> None:
    eos, ignore = fields.pop("eos", 257), fields.pop("ignore_eos", False)
    sampling = Sampling(max_tokens=fields.pop("max_tokens", 5), ignore_eos=ignore)
    found = ends(ARM, [response(0, [1, 1], **fields)], (eos,), sampling)
    assert found.passed is passed
    assert words in found.detail


def test_the_baseline_is_not_asked_for_acceptance() -> None:
    job = make_job()
    responses = [replace(r, arm=arm) for arm in ("ar", "stock") for r in drawn([0.3, 0.5, 0.7, 0.9] * 3)]
    names = [audit.name for audit in acceptance_audits(job, responses, [], (257,))]
    assert "acceptance not forced: stock" in names
    assert "acceptance hangs on the prompt: stock" in names
    assert [name for name in names if name.endswith(": ar")] == ["ends where it must: ar"]
