"""guidellm's JSON: a list of benchmarks, each with its requests. The last benchmark is read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from harness.errors import DataError
from harness.importers.records import Imported, ImportedRequest, Source, section, words

TPOT = "its time_per_output_token_ms includes the first token; its inter_token_latency_ms is a request's mean"


def is_guidellm(document: Mapping[str, Any]) -> bool:
    """Whether this is a report of guidellm."""
    return isinstance(document.get("benchmarks"), list)


def read_guidellm(source: Source, documents: list[dict[str, Any]]) -> Imported:
    """The last benchmark of the file; a sweep holds several.

    Raises:
        DataError: there is none.
    """
    benchmarks = source.series(documents[-1], "benchmarks") or []
    if not benchmarks or not isinstance(benchmarks[-1], dict):
        raise DataError(f"{source.path}: `benchmarks` is empty")
    found = benchmarks[-1]
    requested = section(found, "requests")
    good = [one for one in source.series(requested, "successful") or [] if isinstance(one, Mapping)]
    bad = source.series(requested, "errored") or []
    requests = tuple(_request(source, one) for one in good)
    strategy = section(found, "config", "strategy") or section(found, "args", "strategy")
    cautions = [TPOT]
    if len(benchmarks) > 1:
        cautions.append(f"the file holds {len(benchmarks)} benchmarks; this is the last")
    counts = [one.output_tokens for one in requests]
    return Imported(
        tool="guidellm",
        source=str(source.path),
        tool_version=words(section(documents[-1], "metadata").get("guidellm_version")),
        model=words(section(found, "config", "backend").get("model")),
        dataset=None,
        concurrency=source.whole(strategy, "streams") or source.whole(strategy, "max_concurrency"),
        request_rate=source.number(strategy, "rate"),
        completed=len(good) if good else None,
        failed=len(bad),
        duration_s=source.number(found, "duration"),
        output_tokens=None if not counts or None in counts else sum(n for n in counts if n is not None),
        requests=requests,
        cautions=tuple(cautions),
    )


def _request(source: Source, found: Mapping[str, Any]) -> ImportedRequest:
    """Requests come in the order they ended: only what was sent can pair them."""
    sent = words(found.get("request_args"))
    ttft, text = source.number(found, "time_to_first_token_ms"), words(found.get("output"))
    return ImportedRequest(
        key=None if sent is None else hashlib.sha256(sent.encode()).hexdigest()[:16],
        output_tokens=source.whole(found, "output_tokens"),
        seconds=source.number(found, "request_latency"),
        ttft_seconds=None if ttft is None else ttft / 1e3,
        texts=None if text is None else (text,),
    )
