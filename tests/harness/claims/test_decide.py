"""Every verdict on claims, with the rule that decided, on committed reports and changed copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from harness.claims.decide import Verification, verify
from harness.claims.measure import Evidence
from harness.claims.records import Claim, Figure, Sourced, assume
from harness.codec import from_plain
from harness.errors import UsageError
from harness.oracle.stored import StoredRun, load_run
from harness.results import Report

REPORTS = Path(__file__).parents[3] / "reports"
TRUE = 1.2825  # the ratio of the committed run, an interval of [0.997, 1.544] around it
BACKEND = "harness.backends.openai_server:open_session"


@pytest.fixture(scope="module")
def run() -> StoredRun:
    """Two vLLM servers on a CPU, three launches; fewer resamples than it was reported with."""
    found = load_run(REPORTS / "2026-12-02-compare-vllm-cpu")
    plan = found.report.job.plan
    quick = replace(plan, stats=replace(plan.stats, resamples=200))
    return found._replace(report=replace(found.report, job=replace(found.report.job, plan=quick)))


def sourced(speedup: float = TRUE, *, margin: float = 0.02, **fields: Any) -> Sourced:
    words = {
        "name": "own",
        "target": "HuggingFaceTB/smollm2-135m-instruct",
        "drafter": "ngram",
        "drafts": 5,
        "engine": "vllm",
        "gpu": "cpu",
        "concurrency": 1,
        "temperature": 0.0,
        "max_tokens": 48,
        "figures": [{"sets": ["embedded"], "speedup": speedup}],
    } | fields
    claim = from_plain(words, Claim, "claim")
    return Sourced(claim=claim, who="us", source="here", read="source", margin=margin)


def held(
    claim: Sourced,
    run: StoredRun,
    change: Callable[[Report], Report] = lambda report: report,
    *,
    faster: float = 1.0,
) -> Verification:
    """Against the run, its report changed, or its candidate so many times as fast."""
    responses = [
        r
        if r.arm != "candidate"
        else replace(
            r,
            first_token_ns=max(1, int((r.first_token_ns or 0) / faster)),
            end_ns=int((r.end_ns or 0) / faster),
        )
        for r in run.responses
    ]
    return verify(claim, Evidence(change(run.report), responses, run.prompts, "candidate"))


def edited(*path: str | int, value: Any) -> Callable[[Report], Report]:
    def change(report: Report) -> Report:
        plain = msgspec.to_builtins(report)
        inner = plain
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return from_plain(plain, Report, "report")

    return change


def test_a_true_claim_is_confirmed_and_its_division_printed(run: StoredRun) -> None:
    found = held(sourced(2.0 * TRUE), run, faster=2.0)  # twice as fast, the interval is clear of 1
    assert (found.verdict, found.rule) == ("confirmed", "value")
    assert "stock 430.565 s for 10080 tokens / candidate 167.870 s" in found.detail
    assert found.findings[0].measured is not None
    assert found.unstated == ("dtype",)


@pytest.mark.parametrize(
    ("claimed", "faster", "verdict"),
    [
        (2.5, 1.0, "refuted"),  # outside of the interval, far off
        (0.5, 1.0, "refuted"),  # understated: the number is not reproduced either
        (1.4, 1.0, "inconclusive"),  # inside of a wide interval, the point elsewhere
        (0.9 * TRUE, 0.9, "inconclusive"),  # the interval holds 1: no speedup is shown
    ],
)
def test_other_figures_are_not(run: StoredRun, claimed: float, faster: float, verdict: str) -> None:
    found = held(sourced(claimed), run, faster=faster)
    assert (found.verdict, found.rule) == (verdict, "value")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpu": "H100"}, "gpu: claimed H100, the run has cpu"),
        ({"target": "Qwen/Qwen3-8B"}, "target: claimed Qwen/Qwen3-8B"),
        ({"drafter": "eagle3"}, "drafter: claimed eagle3, the run has ngram"),
        ({"drafts": 7}, "drafts: claimed 7, the run has 5"),
        ({"engine": "sglang"}, "engine: claimed sglang"),
        ({"concurrency": 8}, "concurrency: claimed 8, the run has 1"),
        ({"temperature": 1.0}, "temperature: claimed 1.0"),
        ({"max_tokens": 2048}, "max_tokens: claimed 2048"),
        ({"dtype": "bfloat16"}, "dtype: claimed bfloat16, the run has float32"),
        ({"figures": [{"sets": ["gsm8k"], "speedup": TRUE}]}, "the run has no prompts of gsm8k"),
        ({"over": "stock"}, None),
    ],
)
def test_another_system_is_not_comparable_and_gives_no_number(
    run: StoredRun, fields: dict[str, Any], words: str | None
) -> None:
    found = held(sourced(**fields), run)
    if words is None:  # this run's baseline is its stock arm
        assert found.verdict != "not comparable"
        return
    assert found.verdict == "not comparable"
    assert words in found.detail
    assert all(finding.measured is None for finding in found.findings)


def test_the_gpu_of_a_server_elsewhere_is_unknown_until_its_owner_says_it(run: StoredRun) -> None:
    plain = edited("backends", BACKEND, "arms", "candidate", "url", value="http://gpu-box:8000")
    found = held(sourced(gpu="H200"), run, plain)
    assert "gpu: claimed H200, the report does not tell; --gpu NAME" in found.detail
    told = Evidence(plain(run.report), run.responses, run.prompts, "candidate", "NVIDIA H200")
    assert verify(sourced(gpu="H200"), told).rule == "value"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            edited(
                "backends",
                BACKEND,
                *("arms", "candidate", "told", "settings", "speculative_config.rejection_sample_method"),
                value="synthetic",
            ),
            "synthetic",
        ),
        (
            edited("job", "plan", "arms", 1, "params", "environment", value="SGLANG_SIMULATE_ACC_LEN=4"),
            "sglang_simulate_acc_len=4",
        ),
        (
            edited(
                *("job", "plan", "arms", 1, "params", "flags"),
                value="--speculative-accept-threshold-single 0.9",
            ),
            "relaxed",
        ),
    ],
)
def test_forced_or_relaxed_acceptance_is_refused_whatever_the_speed(
    run: StoredRun, change: Callable[[Report], Report], words: str
) -> None:
    found = held(sourced(), run, change)
    assert (found.verdict, found.rule) == ("not comparable", "acceptance")
    assert words in found.detail
    assert not found.findings


def test_a_threshold_of_one_is_the_targets_own_test(run: StoredRun) -> None:
    plain = edited(
        "job", "plan", "arms", 1, "params", "flags", value="--speculative-accept-threshold-acc 1.0"
    )
    assert held(sourced(2.5), run, plain).rule == "value"


def test_an_invalid_run_a_violated_arm_and_a_smoke_run(run: StoredRun) -> None:
    invalid = replace(run.report, status="invalid", reasons=("foreign load",))
    found = held(sourced(), run, lambda _: invalid)
    assert (found.verdict, found.rule) == ("inconclusive", "valid")
    violated = edited("arms", 1, "losslessness", "stock_verdict", value="violated")
    found = held(sourced(), run, violated)
    assert (found.verdict, found.rule) == ("refuted", "lossless")
    smoke = replace(run.report, label="smoke")
    found = held(sourced(2.5), run, lambda _: smoke)
    assert (found.verdict, found.rule) == ("inconclusive", "size")


def test_a_baseline_that_drafts_is_no_autoregressive_decoding(run: StoredRun) -> None:
    settings = {"speculative_config.method": "ngram", "speculative_config.num_speculative_tokens": 5}
    drafting = edited("backends", BACKEND, "arms", "stock", "told", "settings", value=settings)
    found = held(sourced(), run, drafting)
    assert (found.verdict, found.rule) == ("not comparable", "baseline")


def test_a_claim_that_contradicts_itself_is_refuted_without_a_run(run: StoredRun) -> None:
    found = held(sourced(figures=[{"sets": ["embedded"], "speedup": 3.0, "ar": 100, "spec": 250}]), run)
    assert (found.verdict, found.rule) == ("refuted", "coherent")


def test_what_a_claim_leaves_out_can_be_assumed_once(run: StoredRun) -> None:
    bare = sourced(2.5, gpu=None, concurrency=None, figures=[{"speedup": 2.5}])
    found = held(bare, run)
    assert (found.verdict, found.rule) == ("not comparable", "complete")
    assert "gpu, concurrency, sets" in found.detail
    filled = assume(bare, {"gpu": "cpu", "concurrency": "1", "sets": "embedded"})
    found = held(filled, run)
    assert found.verdict == "refuted"
    assert found.assumed == ("gpu=cpu", "concurrency=1", "sets=embedded")
    with pytest.raises(UsageError, match="says 'ngram'"):
        assume(bare, {"drafter": "dflash"})
    with pytest.raises(UsageError, match="concurrency"):
        assume(bare, {"concurrency": "many"})


def test_a_figure_compared_on_some_of_its_sets_says_how_many(run: StoredRun) -> None:
    figures = [{"sets": ["embedded"], "speedup": 2.5}, {"sets": ["mbpp"], "speedup": 2.5}]
    found = held(sourced(figures=figures), run)
    assert found.verdict == "refuted"
    assert "1 of 2 figures were compared" in found.detail


def test_acceptance_is_counted_not_taken_from_a_server(run: StoredRun) -> None:
    found = held(sourced(figures=[{"sets": ["embedded"], "acceptance_length": 3.9}]), run)
    assert (found.verdict, found.rule) == ("inconclusive", "size")


@pytest.mark.parametrize(
    ("claimed", "verdict"), [(7.88, "confirmed"), (7.7, "refuted"), (7.875, "confirmed")]
)
def test_a_count_without_spread_is_exact(claimed: float, verdict: str) -> None:
    run = load_run(REPORTS / "2026-12-02-reproduce-cpu")
    figure = [{"sets": ["humaneval"], "acceptance_length": claimed}]
    words: dict[str, Any] = {
        "drafter": "replay",
        "drafts": 7,
        "engine": "reference",
        "max_tokens": 64,
        "figures": figure,
    }
    found = verify(sourced(**words), Evidence(run.report, run.responses, run.prompts, "replay"))
    assert found.verdict == verdict
    assert "630 tokens / 80 verify steps" in found.detail


def test_a_figure_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="needs `speedup`"):
        Figure(sets=("gsm8k",))
    with pytest.raises(ValueError, match="come together"):
        Figure(ar=100.0)
