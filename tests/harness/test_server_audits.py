from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from harness.plan import ArmSpec, Job
from harness.records import Chunk, Response, Sampling
from harness.results import Audit
from harness.server_audits import server_audits, server_warnings
from tests.harness.fakes import make_job

BACKEND = "m:servers"
ARMS = (
    ArmSpec(name="stock", kind="stock", backend=BACKEND),
    ArmSpec(name="candidate", kind="candidate", backend=BACKEND),
)
MS = 1_000_000


def response(arm: str, prompt: int = 0, block: int = 0, **fields: Any) -> Response:
    plain: dict[str, Any] = {
        "prompt_id": f"own/p{prompt}",
        "arm": arm,
        "launch": 0,
        "block": block,
        "order": block,
        "status": "ok",
        "prompt_tokens": 3,
        "started_at": 0.0,
        "token_ids": (1, 2, 3),
        "finish_reason": "length",
        "first_token_ns": 50 * MS,
        "end_ns": 80 * MS,
        "chunks": (Chunk(num_tokens=1, at_ns=50 * MS), Chunk(num_tokens=2, at_ns=80 * MS)),
        "usage_tokens": 3,
    }
    return Response(**(plain | fields))


def facts(stock: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{BACKEND: {"arms": {"stock": stock, "candidate": candidate}}}]


def audited(
    responses: Sequence[Response], told: Sequence[Mapping[str, Any]] = (), job: Job | None = None
) -> dict[str, Audit]:
    found = server_audits(job or make_job(ARMS), responses, told)
    return {audit.name: audit for audit in found}


BOTH = [response(arm, block=block) for arm in ("stock", "candidate") for block in (0, 1)]


@pytest.mark.parametrize(
    ("usage", "retokenised", "passed"),
    [(3, False, True), (4, False, False), (2, False, False), (4, True, None), (None, False, None)],
    ids=["as sent", "inflated", "deflated", "re-tokenised", "not told"],
)
def test_usage_is_held_against_the_ids(usage: int | None, retokenised: bool, passed: bool | None) -> None:
    own = [*BOTH, response("candidate", prompt=1, usage_tokens=usage, retokenised=retokenised)]
    if usage is None:
        own = [response("candidate", usage_tokens=None)]
    assert audited(own)["usage is what was sent: candidate"].passed is passed


@pytest.mark.parametrize(
    ("stranger_ms", "stock_ms", "passed"),
    [(50, 50, True), (190, 50, True), (210, 50, False), (210, 55, True), (5, 5, True)],
    ids=["alike", "within the limit", "a cache", "the baseline is as slow", "quicker than known ones"],
)
def test_known_prompts_may_not_be_much_quicker_than_strangers(
    stranger_ms: int, stock_ms: int, passed: bool
) -> None:
    told = facts({"strangers": {"own/p0": stock_ms * MS}}, {"strangers": {"own/p0": stranger_ms * MS}})
    assert audited(BOTH, told)["no answer from a response cache: candidate"].passed is passed


def test_one_cached_block_is_enough_to_be_seen() -> None:
    own = [*BOTH[:3], response("candidate", block=1, first_token_ns=2 * MS)]
    told = facts({"strangers": {"own/p0": 50 * MS}}, {"strangers": {"own/p0": 50 * MS}})
    assert audited(own, told)["no answer from a response cache: candidate"].passed is False


def test_without_strangers_there_is_no_verdict_on_caches() -> None:
    assert audited(BOTH, facts({}, {}))["no answer from a response cache: candidate"].passed is None


@pytest.mark.parametrize(
    ("counters", "passed", "words"),
    [
        ({"num_drafts": 10, "num_draft_tokens": 40, "num_accepted_tokens": 25}, True, "length 3.500"),
        ({"num_drafts": 0, "num_draft_tokens": 0, "num_accepted_tokens": 0}, False, "0 tokens drafted"),
        ({}, None, "no speculation counters"),
    ],
    ids=["on", "off", "not told"],
)
def test_speculation_is_read_from_the_servers_own_counters(
    counters: dict[str, int], passed: bool | None, words: str
) -> None:
    audit = audited(BOTH, facts({}, {"counters": counters}))["speculation on: candidate"]
    assert audit.passed is passed
    assert words in audit.detail


@pytest.mark.parametrize(("hits", "passed"), [(0, True), (7, None), (None, None)])
def test_prefix_cache_hits_leave_no_clean_verdict(hits: int | None, passed: bool | None) -> None:
    counters = {} if hits is None else {"prefix_cache_hits": hits, "prefix_cache_queries": 90}
    audit = audited(BOTH, facts({}, {"counters": counters}))["no answer from a prefix cache: candidate"]
    assert audit.passed is passed


def test_refusals_and_missing_ids_are_told() -> None:
    own = [*BOTH, response("candidate", prompt=1, refusals=2, retokenised=True)]
    found = audited(own)
    assert found["accepted at once: candidate"].passed is None
    assert found["ids from the server: candidate"].passed is None
    assert len(server_warnings(own)) == 1
    assert server_warnings(BOTH) == ()


def test_a_seed_that_does_not_fix_the_output_is_told_above_temperature_0() -> None:
    job = make_job(ARMS)
    sampling = Sampling(max_tokens=3, temperature=1.0)
    hot = msgspec.structs.replace(job, plan=msgspec.structs.replace(job.plan, sampling=sampling))
    own = [*BOTH, response("candidate", block=2, token_ids=(1, 2, 4))]
    assert audited(own, job=hot)["repeats its seed: candidate"].passed is None
    assert audited(own, job=hot)["repeats its seed: stock"].passed is True
    assert "repeats its seed: stock" not in audited(own)


def test_arms_that_are_no_servers_have_no_such_audits() -> None:
    plain = response("stock", chunks=(), prefill_tokens=3)
    assert audited([plain]) == {}


SENT = dict.fromkeys(("temperature", "top_p", "top_k", "min_p"), 0) | dict.fromkeys(
    ("repetition_penalty", "presence_penalty", "frequency_penalty"), 0
)


@pytest.mark.parametrize(
    ("sent", "told", "model_defaults", "passed", "words"),
    [
        pytest.param(SENT, {}, {}, True, "tells no sampling defaults", id="all named, nothing told"),
        pytest.param(
            SENT, {"defaults_from": "auto"}, {"top_k": 20}, True, "from 'auto'", id="defaults overridden"
        ),
        pytest.param({"temperature": 0}, {}, {"top_k": 20}, None, "overrides top_k", id="the model's acts"),
        pytest.param(
            {"temperature": 0}, {"defaults": {"min_p": 0.1}}, {}, None, "overrides min_p", id="its own acts"
        ),
        pytest.param(
            {"temperature": 0},
            {"defaults_from": "vllm"},
            {"top_k": 20},
            None,
            "are unknown",
            id="file unused",
        ),
    ],
)
def test_a_default_of_the_server_that_could_act_is_named(
    sent: Mapping[str, Any],
    told: Mapping[str, Any],
    model_defaults: Mapping[str, Any],
    passed: bool | None,
    words: str,
) -> None:
    one = {"request": sent, "told": told, "model_defaults": model_defaults}
    found = audited(BOTH, facts({}, one))["sampled as asked: candidate"]
    assert found.passed is passed
    assert words in found.detail


@pytest.mark.parametrize(
    ("method", "passed"), [("standard", True), ("block", True), ("synthetic", False), (None, None)]
)
def test_a_server_that_tells_of_synthetic_acceptance_fails(method: str | None, passed: bool | None) -> None:
    settings = {} if method is None else {"speculative_config.rejection_sample_method": method}
    found = audited(BOTH, facts({}, {"told": {"settings": settings}}))["drafts are verified: candidate"]
    assert found.passed is passed


@pytest.mark.parametrize(("cost_us", "passed"), [(20.0, True), (2_000.0, None), (None, None)])
def test_a_client_that_takes_the_time_of_the_tokens_is_told(
    cost_us: float | None, passed: bool | None
) -> None:
    """Three tokens in 80 ms: 26.7 ms each."""
    told = facts({}, {})
    told[0][BACKEND]["client_overhead"] = None if cost_us is None else {"microseconds_per_token": cost_us}
    assert audited(BOTH, told)["the client keeps up: candidate"].passed is passed
