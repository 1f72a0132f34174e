"""`vllm bench serve` and SGLang's `bench_serving`: close relatives, with other names for a few things.

Both write one JSON object a run (SGLang appends lines; the last one counts). Per-request arrays are
there only with `--save-detailed` (vLLM) or `--output-details` (SGLang).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.importers.records import Imported, ImportedRequest, Source, whole_text, words

CHUNKS = "its inter-token latencies and peak throughput count stream chunks, which may hold many tokens"
SERVER_WIDE = "its acceptance counters are the whole server's: other traffic and warm-up count too"


def is_vllm(document: Mapping[str, Any]) -> bool:
    """Whether this is a result of `vllm bench serve`."""
    return "output_throughput" in document and ("burstiness" in document or "tokenizer_id" in document)


def is_sglang(document: Mapping[str, Any]) -> bool:
    """Whether this is a result of SGLang's `bench_serving`."""
    return "output_throughput" in document and "total_output_tokens" in document and not is_vllm(document)


def read_vllm(source: Source, documents: list[dict[str, Any]]) -> Imported:
    """The last result of the file."""
    found = documents[-1]
    length = source.number(found, "spec_decode_acceptance_length")
    requests = _requests(source, found, latencies=source.numbers(found, "latencies"))
    cautions = [CHUNKS]
    if length is not None:
        cautions.append(SERVER_WIDE)
    if words(found.get("label")) is None and found.get("temperature") is None:
        cautions.append(
            "it sends no temperature of its own unless told: the model's default may have sampled"
        )
    return Imported(
        tool="vllm-bench",
        source=str(source.path),
        model=words(found.get("model_id")),
        engine=words(found.get("endpoint_type") or found.get("backend")),
        dataset=words(found.get("dataset_name")),
        gpu=words(found.get("gpu")),  # only where the user gave --metadata gpu=...
        concurrency=source.whole(found, "max_concurrency"),
        request_rate=source.number(found, "request_rate"),
        temperature=source.number(found, "temperature"),
        completed=source.whole(found, "completed"),
        failed=source.whole(found, "failed"),
        duration_s=source.number(found, "duration"),
        output_tokens=source.whole(found, "total_output_tokens"),
        acceptance_length=length,
        acceptance_is=None if length is None else "1 + accepted / drafts, bonus token included, whole server",
        requests=requests,
        cautions=tuple(cautions),
    )


def read_sglang(source: Source, documents: list[dict[str, Any]]) -> Imported:
    """The last line of the file: SGLang appends."""
    found = documents[-1]
    length = source.number(found, "accept_length")
    requests = _requests(source, found, latencies=None)
    arguments = found.get("server_info") if isinstance(found.get("server_info"), Mapping) else {}
    cautions = [CHUNKS, "it ignores EOS unless told otherwise, so that lengths are fixed: a system figure"]
    if length is not None:
        cautions.append(SERVER_WIDE)
    return Imported(
        tool="sglang-bench",
        source=str(source.path),
        model=words(found.get("model") or found.get("model_id") or (arguments or {}).get("model_path")),
        engine=words(found.get("backend")),
        dataset=words(found.get("dataset_name")),
        concurrency=source.whole(found, "max_concurrency"),
        request_rate=source.number(found, "request_rate"),
        completed=source.whole(found, "completed"),
        duration_s=source.number(found, "duration"),
        output_tokens=source.whole(found, "total_output_tokens"),
        acceptance_length=length,
        acceptance_is=None if length is None else "the server's running average since it started",
        requests=requests,
        cautions=tuple(cautions),
    )


def _requests(
    source: Source, found: Mapping[str, Any], latencies: list[float] | None
) -> tuple[ImportedRequest, ...]:
    """Requests in the order they were sent, which is the order of the data set; failed ones left out."""
    lengths = source.numbers(found, "output_lens")
    if lengths is None:
        return ()
    count = len(lengths)
    ttfts = source.numbers(found, "ttfts", count)
    gaps = _gaps(source, found, count)
    inputs = source.series(found, "input_lens", count)
    texts = source.series(found, "generated_texts", count)
    errors = source.series(found, "errors", count)
    ends = latencies if latencies is not None and len(latencies) == count else None
    kept = []
    for index, length in enumerate(lengths):
        if errors is not None and errors[index]:
            continue
        seconds = ends[index] if ends is not None else None
        if seconds is None and ttfts is not None and gaps is not None:
            seconds = ttfts[index] + gaps[index]
        kept.append(
            ImportedRequest(
                key=whole_text(f"{index}/{inputs[index]}") if inputs is not None else None,
                output_tokens=int(length),
                seconds=seconds or None,
                ttft_seconds=ttfts[index] if ttfts is not None else None,
                texts=(whole_text(texts[index]),) if texts is not None else None,
            )
        )
    return tuple(kept)


def _gaps(source: Source, found: Mapping[str, Any], count: int) -> list[float] | None:
    """Seconds between the first and the last token of each request."""
    told = source.series(found, "itls", count)
    if told is None:
        return None
    return [sum(source.numbers({"itls": gaps}, "itls") or ()) for gaps in told]
