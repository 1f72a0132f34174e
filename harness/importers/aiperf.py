"""AIPerf: `profile_export.jsonl` (a record a request) or `profile_export_aiperf.json` (the summary)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.errors import DataError
from harness.importers.records import Imported, ImportedRequest, Source, section, whole_text, words

MILLISECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9}
LENGTHS = ("spec_decode_token_weighted_acceptance_length", "spec_decode_acceptance_length")


def is_records(document: Mapping[str, Any]) -> bool:
    """Whether this is a line of `profile_export.jsonl`."""
    return isinstance(document.get("metrics"), Mapping) and isinstance(document.get("metadata"), Mapping)


def is_summary(document: Mapping[str, Any]) -> bool:
    """Whether this is `profile_export_aiperf.json`."""
    return "unit" in section(document, "request_latency") or "unit" in section(document, "request_throughput")


def read_records(source: Source, documents: list[dict[str, Any]]) -> Imported:
    """Every request but those of the warm-up. What was run stands in the summary beside it, not here."""
    measured = [d for d in documents if section(d, "metadata").get("benchmark_phase") in (None, "profiling")]
    good = [d for d in measured if not d.get("error") and not section(d, "metadata").get("was_cancelled")]
    requests = tuple(_request(source, document) for document in good)
    starts = [source.number(section(d, "metadata"), "request_start_ns") for d in good]
    ends = [source.number(section(d, "metadata"), "request_end_ns") for d in good]
    spans = [s for s in starts if s is not None], [e for e in ends if e is not None]
    counts = [request.output_tokens for request in requests]
    return Imported(
        tool="aiperf",
        source=str(source.path),
        completed=len(good),
        failed=len(measured) - len(good),
        duration_s=(max(spans[1]) - min(spans[0])) / 1e9 if all(spans) else None,
        output_tokens=None if not counts or None in counts else sum(n for n in counts if n is not None),
        requests=requests,
        cautions=("only the summary file says what was run: model, concurrency, sampling",),
    )


def read_summary(source: Source, documents: list[dict[str, Any]]) -> Imported:
    """The summary: no requests in it."""
    found = documents[-1]
    endpoint, load = section(found, "input_config", "endpoint"), section(found, "input_config", "loadgen")
    models = endpoint.get("model_names")
    length, which = None, None
    for name in LENGTHS:
        value = source.number(section(found, name), "avg")
        if value is not None and length is None:
            length, which = value, name
    gpus = {
        whole_text(gpu.get("gpu_name"))
        for endpoint_data in section(found, "telemetry_data", "endpoints").values()
        for gpu in section(endpoint_data, "gpus").values()
        if isinstance(gpu, Mapping)
    }
    return Imported(
        tool="aiperf",
        source=str(source.path),
        tool_version=words(found.get("aiperf_version")),
        model=words(models[0]) if isinstance(models, list) and len(models) == 1 else None,
        gpu=gpus.pop() if len(gpus) == 1 else None,
        concurrency=source.whole(load, "concurrency"),
        request_rate=source.number(load, "request_rate"),
        completed=source.whole(section(found, "request_count"), "avg"),
        failed=source.whole(section(found, "error_request_count"), "avg"),
        duration_s=source.number(section(found, "benchmark_duration"), "avg"),
        output_tokens=source.whole(section(found, "total_osl"), "avg"),
        acceptance_length=length,
        acceptance_is=which,
        cautions=("it holds no requests: profile_export.jsonl does",),
    )


def _request(source: Source, document: Mapping[str, Any]) -> ImportedRequest:
    metadata = section(document, "metadata")
    conversation = words(metadata.get("conversation_id"))
    tokens = _value(source, document, "output_sequence_length")
    return ImportedRequest(
        key=None if conversation is None else f"{conversation}/{words(metadata.get('turn_index', 0))}",
        output_tokens=None if tokens is None else round(tokens),
        seconds=_seconds(source, document, "request_latency"),
        ttft_seconds=_seconds(source, document, "time_to_first_token"),
    )


def _value(source: Source, document: Mapping[str, Any], name: str) -> float | None:
    return source.number(section(document, "metrics", name), "value")


def _seconds(source: Source, document: Mapping[str, Any], name: str) -> float | None:
    value = _value(source, document, name)
    if value is None:
        return None
    unit = whole_text(section(document, "metrics", name).get("unit"))
    if unit not in MILLISECONDS:
        raise DataError(f"{source.path}: `{name}` is in {unit!r}; known units are {', '.join(MILLISECONDS)}")
    return value * MILLISECONDS[unit]
