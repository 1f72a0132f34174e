"""Spec-Bench and EAGLE: a line a question, with new tokens, wall time and accept lengths of every turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.errors import DataError
from harness.importers.records import Imported, ImportedRequest, Source, whole_text, words

COUNTING = (
    "its speed.py takes the method's own token counts, but re-tokenises the baseline's text and takes one "
    "token off a turn"
)
WARM = "its first question was used to warm up and is measured again"


def is_spec_bench(document: Mapping[str, Any]) -> bool:
    """Whether this is an answer of Spec-Bench or EAGLE."""
    choices = document.get("choices")
    return (
        isinstance(choices, list)
        and bool(choices)
        and isinstance(choices[0], dict)
        and "wall_time" in choices[0]
    )


def read_spec_bench(source: Source, documents: list[dict[str, Any]]) -> Imported:
    """Every question; turns of one are added up, as its own report does."""
    requests = tuple(_question(source, d) for d in documents if is_spec_bench(d))
    names = {whole_text(d["model_id"]) for d in documents if words(d.get("model_id"))}
    counts = [request.output_tokens for request in requests]
    lengths = [length for request in requests for length in request.accept_lengths]
    seconds = [request.seconds for request in requests if request.seconds is not None]
    return Imported(
        tool="spec-bench",
        source=str(source.path),
        model=names.pop() if len(names) == 1 else None,
        engine="transformers",
        concurrency=1,
        completed=len(requests),
        duration_s=sum(seconds),
        output_tokens=sum(n for n in counts if n is not None),
        acceptance_length=sum(lengths) / len(lengths) if lengths else None,
        acceptance_is="mean over all verify steps of the tool's own accept lengths" if lengths else None,
        requests=requests,
        cautions=(COUNTING, WARM),
    )


def _question(source: Source, document: Mapping[str, Any]) -> ImportedRequest:
    choice = document["choices"][0]
    key = words(document.get("question_id"))
    where = f"{source.path}, question {key}"
    times = source.numbers(choice, "wall_time")
    if times is None:
        raise DataError(f"{where}: `wall_time` must be a list of seconds")
    tokens = source.numbers(choice, "new_tokens")
    if tokens is None or len(tokens) != len(times):
        raise DataError(f"{where}: `new_tokens` must be a list as long as `wall_time`")
    turns = source.series(choice, "turns") or []
    if any(str(turn) == "ERROR" for turn in turns):
        raise DataError(
            f"{where}: a turn is 'ERROR', whose times are those of another turn; leave the line out"
        )
    return ImportedRequest(
        key=key,
        category=words(document.get("category")),
        output_tokens=int(sum(tokens)),
        seconds=float(sum(times)),
        texts=tuple(map(whole_text, turns)) if turns else None,
        accept_lengths=tuple(source.numbers(choice, "accept_lengths") or ()),
    )
