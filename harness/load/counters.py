"""Counters of a server's /metrics, and their change over a stretch of the run. Pure.

The names are those of vLLM and SGLang; what a server does not export is absent, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from harness.codec import Record

NAMES = {
    "num_drafts": ("vllm:spec_decode_num_drafts",),
    "num_draft_tokens": ("vllm:spec_decode_num_draft_tokens",),
    "num_accepted_tokens": ("vllm:spec_decode_num_accepted_tokens",),
    "prefix_cache_queries": ("vllm:prefix_cache_queries",),
    "prefix_cache_hits": ("vllm:prefix_cache_hits", "sglang:cached_tokens"),
    "preemptions": ("vllm:num_preemptions",),
    "generation_tokens": ("vllm:generation_tokens", "sglang:generation_tokens"),
    "prompt_tokens": ("vllm:prompt_tokens", "sglang:prompt_tokens"),
}


class CounterDelta(Record, frozen=True):
    """What changed between two scrapes; None: the server does not export it."""

    num_drafts: int | None = None
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    preemptions: int | None = None
    generation_tokens: int | None = None
    prompt_tokens: int | None = None


def read_counters(text: str) -> dict[str, float]:
    """Sum of each known counter over all label sets (engines, ranks)."""
    wanted = {name: key for key, names in NAMES.items() for name in names}
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        key = wanted.get(family.name.removesuffix("_total"))  # untyped families keep it
        if key is None:
            continue
        for sample in family.samples:
            if not sample.name.endswith(("_created", "_bucket", "_sum", "_count")):
                totals[key] = totals.get(key, 0.0) + float(sample.value)
    return totals


def delta(before: Mapping[str, float], after: Mapping[str, float]) -> CounterDelta:
    """Change of every counter that both scrapes hold; a restart in between makes them absent."""
    changes = {key: round(after[key] - before[key]) for key in after if key in before}
    if any(change < 0 for change in changes.values()):
        return CounterDelta()
    return CounterDelta(**changes)
