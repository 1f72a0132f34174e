"""An imported result as a claim file: what the tool's file says, and nothing that it does not."""

from __future__ import annotations

import json

from harness.claims.records import ClaimFile
from harness.codec import from_toml
from harness.errors import UndefinedMetric
from harness.importers.headlines import headlines
from harness.importers.records import Imported

DIGITS = 4


def claim_toml(method: Imported, baseline: Imported | None, who: str) -> str:
    """TOML of a claim with one figure, ready for what is unknown to be filled in by hand.

    Args:
        method: the result with speculation.
        baseline: the result without; None makes a claim of acceptance length alone.
        who: who made the results.

    Raises:
        UndefinedMetric: the files hold no figure to claim.
    """
    figure: dict[str, object] = {}
    if baseline is not None:
        try:
            figure["speedup"] = round(headlines(baseline, method).found[0].speedup, DIGITS)
        except UndefinedMetric:
            if baseline.throughput and method.throughput:
                figure["ar"] = round(baseline.throughput, DIGITS)
                figure["spec"] = round(method.throughput, DIGITS)
    if method.acceptance_length is not None:
        figure["acceptance_length"] = round(method.acceptance_length, DIGITS)
    if not figure:
        raise UndefinedMetric(
            f"{method.source}: no speedup and no acceptance length to claim; give --baseline"
        )
    engines = {"vllm": "vllm", "openai": "vllm", "sglang": "sglang", "transformers": "transformers"}
    known = {
        "target": method.model,
        "engine": engines.get((method.engine or "").partition("-")[0]) if method.tool != "guidellm" else None,
        "gpu": method.gpu,
        "concurrency": method.concurrency,
        "temperature": method.temperature,
    }
    sets = [] if method.dataset is None else [f"sets = {json.dumps([method.dataset])}"]
    parts = ", ".join([*sets, *(f"{key} = {value}" for key, value in figure.items())])
    lines = [
        f"# Imported from {method.tool}; unknown there: {', '.join(method.unknown) or 'nothing'}.",
        'schema = "claims/1"',
        f"who = {json.dumps(who)}",
        f"source = {json.dumps(method.source)}",
        'read = "source"',
        "",
        "[[claims]]",
        'name = "imported"',
        *(f"{key} = {json.dumps(value)}" for key, value in known.items() if value is not None),
        *(['division = "system"'] if method.ignore_eos else []),
        f"figures = [{{ {parts} }}]",
    ]
    text = "\n".join(lines) + "\n"
    from_toml(text, ClaimFile, "imported claim")  # what is written can be read
    return text
