"""The completions API on the wire: what is asked, what a chunk says. Pure.

Spelling follows OpenAI's completions endpoint with vLLM's extensions (`return_token_ids`,
`stop_token_ids`, `min_tokens`, `ignore_eos`, `top_k`, `min_p`, `repetition_penalty`, `cache_salt`). An
extension is sent only to a server whose own schema names it, so that a strict one does not refuse.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harness.codec import Record
from harness.errors import BackendError
from harness.load.told import Told
from harness.records import DecodeRequest

FINISH_REASONS = ("stop", "length")


class Capabilities(Record, frozen=True):
    """What a server says it is and can, read before the run."""

    model: str
    version: str | None  # from /version
    fields: tuple[str, ...]  # of its completion request, from /openapi.json; empty: not told
    metrics: bool  # whether /metrics answers
    max_model_len: int | None = None  # context of the model, from /v1/models
    root: str | None = None  # where the server loaded the model from, if it tells
    native_generate: bool = False  # SGLang's own /generate, beside the completions API
    told: Told = Told()  # its settings, in its own words

    def knows(self, field: str) -> bool:
        """Whether the server's schema names a request field."""
        return field in self.fields


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream, as far as it concerns the first choice."""

    text: str = ""
    token_ids: tuple[int, ...] | None = None  # None: the server gives no ids
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    usage_tokens: int | None = None  # completion_tokens, on the event that carries usage


def request_body(request: DecodeRequest, capabilities: Capabilities, salt: str | None) -> dict[str, Any]:
    """The JSON body that asks for one streamed completion.

    Every sampling field is sent, so that no default of a server (vLLM takes them from the model's
    generation_config.json, SGLang from that or its own preferred parameters) slips in unseen.

    Args:
        request: ids and sampling.
        capabilities: of the server.
        salt: unique per measured request: keeps a prefix cache from answering for the engine;
            None leaves the cache to the server.

    Raises:
        BackendError: the sampling needs an extension that the server does not name.
    """
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": capabilities.model,
        "prompt": list(request.prompt_token_ids),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": request.seed,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    extensions: dict[str, tuple[Any, bool]] = {  # value, and whether the run depends on it
        "top_k": (sampling.top_k if sampling.top_k else -1, sampling.top_k > 0),
        "repetition_penalty": (sampling.repetition_penalty, sampling.repetition_penalty != 1.0),
        "min_p": (0.0, False),
        "min_tokens": (sampling.min_tokens, sampling.min_tokens > 0),
        "ignore_eos": (sampling.ignore_eos, sampling.ignore_eos),
        "stop_token_ids": (list(sampling.stop_token_ids), bool(sampling.stop_token_ids)),
        # Without ids the text must hold every token, so that it can be tokenised again.
        "skip_special_tokens": (capabilities.knows("return_token_ids"), False),
        "add_special_tokens": (False, False),
        "return_token_ids": (True, False),
    }
    for field, (value, needed) in extensions.items():
        if capabilities.knows(field):
            body[field] = value
        elif needed:
            raise BackendError(f"`sampling.{field}` is set, but the server's API has no field of that name")
    if salt is not None and capabilities.knows("cache_salt"):
        body["cache_salt"] = salt
    return body


def neutral_sampling(capabilities: Capabilities) -> dict[str, Any]:
    """Sampling fields that change nothing, as far as the server knows them: no default can act."""
    neutral = {"top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
    extensions = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    return neutral | {name: value for name, value in extensions.items() if capabilities.knows(name)}


def parse_chunk(data: bytes) -> Chunk | None:
    """Read one event; None at the end marker.

    Raises:
        BackendError: no JSON, an error object, or fields of the wrong type.
    """
    if data.strip() == b"[DONE]":
        return None
    try:
        event = msgspec.json.decode(data, type=_Event)
    except (msgspec.DecodeError, ValueError, RecursionError) as broken:
        raise BackendError(f"the server sent an event that is no completion chunk: {broken}") from None
    if event.error is not None:
        raise BackendError(f"the server sent an error: {str(event.error)[:300]}")
    usage = None if event.usage is None else event.usage.completion_tokens
    for choice in event.choices:
        if choice.index == 0:
            return Chunk(
                text=choice.text,
                token_ids=choice.token_ids,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                usage_tokens=usage,
            )
    return Chunk(usage_tokens=usage)


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Choice(msgspec.Struct):
    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Event(msgspec.Struct):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: Any = None
