"""Bodies of requests: fields, types and ranges, as records that are also the published schema.

Names and meanings are OpenAI's, with the extensions that vLLM names. A field that is not here is
refused by name: a server that ignores what it does not know measures another request than the one
that was sent. What other servers offer and this one does not is here with the one value that asks
for nothing, so that clients which always send it are served.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from reference_mechanisms.serving.errors import Refusal

MAX_STOPS = 16  # stop strings, or stop token ids, of a request
MIN_TEMPERATURE = 1e-3  # above 0; below it, float64 logits no longer hold the distribution

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Zero = Annotated[float, Meta(ge=0.0, le=0.0)]
One = Annotated[int, Meta(ge=1, le=1)]
Stop = Annotated[str, Meta(min_length=1, max_length=1024)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Body = TypeVar("Body", bound=msgspec.Struct)


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body, or a part of one, without room for what nobody reads."""


class StreamOptions(_Strict, frozen=True, kw_only=True):
    """What a stream carries beside tokens."""

    include_usage: bool = False


class _Sampled(_Strict, frozen=True, kw_only=True):
    """What both endpoints take."""

    model: str | None = None  # None: the one that is served
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None  # -1 and 0 are off
    seed: Seed | None = None  # None: a fresh one
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOPS)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100.0)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    user: str | None = None  # taken and not used, as OpenAI's servers may
    cache_salt: str | None = None  # there is no prefix cache that it could part
    n: One | None = None
    min_p: Zero | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=0)] | None = None
    skip_special_tokens: Literal[True] | None = None


class CompletionRequest(_Sampled, frozen=True, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Count | None = None
    add_special_tokens: bool | None = None  # around a prompt given as text; true, unless said
    best_of: One | None = None
    echo: Literal[False] | None = None
    logprobs: None = None
    suffix: None = None


class TextPart(_Strict, frozen=True, kw_only=True):
    """A piece of a message."""

    text: str
    type: Literal["text"] = "text"


class Message(_Strict, frozen=True, kw_only=True):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]


class ChatCompletionRequest(_Sampled, frozen=True, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None  # OpenAI's newer name of `max_tokens`
    logprobs: Literal[False] | None = None


class TokenizeRequest(_Strict, frozen=True, kw_only=True):
    """Body of `/tokenize`: text or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None


class DetokenizeRequest(_Strict, frozen=True, kw_only=True):
    """Body of `/detokenize`."""

    tokens: list[TokenId]
    model: str | None = None


def read(body: bytes, kind: type[Body]) -> Body:
    """Check a body.

    Raises:
        Refusal: the body is no JSON, or a field is missing, unknown or out of range; it is named.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message, field = _told(str(error))
        raise Refusal(message, field) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(f"the body is no JSON: {error}; send a JSON object", "body") from None


def openapi(version: str) -> dict[str, Any]:
    """The published schema, OpenAPI 3.1."""
    routes = {
        "/v1/completions": CompletionRequest,
        "/v1/chat/completions": ChatCompletionRequest,
        "/tokenize": TokenizeRequest,
        "/detokenize": DetokenizeRequest,
    }
    references, schemas = msgspec.json.schema_components(
        routes.values(), ref_template="#/components/schemas/{name}"
    )
    answer = {"200": {"description": "the answer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "specpilot-harness serve", "version": version},
        "paths": {
            path: {
                "post": {
                    "requestBody": {"content": {"application/json": {"schema": reference}}},
                    "responses": answer,
                }
            }
            for path, reference in zip(routes, references, strict=True)
        },
        "components": {"schemas": schemas},
    }


def _told(error: str) -> tuple[str, str]:
    """A message of msgspec in the house's words, and the field it is about."""
    text, _, path = error.partition(" - at `$")
    inside = re.match(r"\.?([A-Za-z_]\w*)", path)
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL)
    missing = re.fullmatch(r"Object missing required field `(.*)`", text, re.DOTALL)
    own = unknown or missing
    names = [found[1] for found in (inside, own) if found]
    field = ".".join(names) if names else "body"
    if unknown:
        return f"`{field}` is not known here; leave it out", field
    if missing:
        return f"`{field}` is missing", field
    where = "" if not path else f" (at {path.removesuffix('`').removeprefix('.')})"
    return f"`{field}`: {text[0].lower()}{text[1:]}{where}", field
