"""Tables of costs for the tests. Example data: none was measured by this project."""

from __future__ import annotations

from pathlib import Path

from harness.models import resolve_model
from harness.plan import Deployment
from reference_mechanisms.batching.costs import (
    FILE,
    DraftCost,
    OverlapCost,
    PrefillCost,
    Setup,
    StepCosts,
    VerifyCost,
)


def write_costs(path: Path, deployment: Deployment, costs: StepCosts) -> str:
    """A file of costs that says it was measured on a deployment."""
    setup = Setup(
        target=deployment.name,
        target_sha256=resolve_model(deployment.target).sha256 or "",
        drafter="d",
        drafter_sha256="b",
        device=f"cpu, {deployment.threads} threads",
        dtype=deployment.target.dtype,
        weights_format=deployment.weights_format,
        context=64,
        graphs=False,
        repeats=5,
        measured="2026-12-02",
    )
    FILE.write(path, setup, costs)
    return str(path)


def staircase(requests: int, drafts: int, *, row: float = 0.2, draft: float = 0.5) -> StepCosts:
    """Example: a fixed price, and one more for every eight rows; every power of two of requests."""
    counts = [1 << power for power in range(requests.bit_length())]
    return StepCosts(
        verify=tuple(
            VerifyCost(requests=count, rows=rows, milliseconds=4.0 + row * rows)
            for count in counts
            for rows in sorted({count, *range(8, count * (1 + drafts) + 8, 8)})
            if rows >= count
        ),
        draft=tuple(DraftCost(requests=count, drafts=drafts, milliseconds=draft) for count in counts),
        prefill=(
            PrefillCost(rows=64, milliseconds=4.0),
            PrefillCost(rows=512, milliseconds=12.0),
        ),
        overlap=(
            OverlapCost(requests=requests, rows=requests * (1 + drafts) + 8, drafts=drafts, milliseconds=0.1),
        ),
    )


# Example: milliseconds seen for vLLM at an imposed acceptance, as issue 8 tells them; not measured here.
EXAMPLE_VLLM = StepCosts(
    verify=(
        VerifyCost(requests=8, rows=8, milliseconds=5.47),
        VerifyCost(requests=8, rows=64, milliseconds=6.85),
        VerifyCost(requests=8, rows=128, milliseconds=7.23),
        VerifyCost(requests=32, rows=32, milliseconds=5.76),
        VerifyCost(requests=32, rows=256, milliseconds=10.0),
        VerifyCost(requests=32, rows=512, milliseconds=15.7),
        VerifyCost(requests=64, rows=64, milliseconds=6.33),
        VerifyCost(requests=64, rows=512, milliseconds=16.5),
        VerifyCost(requests=64, rows=1024, milliseconds=38.6),
    )
)
