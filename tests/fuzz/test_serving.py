"""Bodies of requests to `serve`: every one is answered with 200, or refused with a field and a reason."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from reference_mechanisms.serving.answers import refusal
from reference_mechanisms.serving.asking import Served, of_chat, of_completion, of_detokenize, of_tokenize
from reference_mechanisms.serving.errors import Refusal
from reference_mechanisms.serving.fields import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    read,
)
from tests.fuzz.hammering import hammer, quick_and_deep
from tests.fuzz.mutating import hostile_json

SERVED = Served(name="tiny", vocab_size=256, context_length=64, eos_token_ids=(1,))
SAMPLING = {
    "model": "tiny",
    "max_tokens": 4,
    "temperature": 0.5,
    "top_k": 3,
    "seed": 7,
    "stop": ["a"],
    "n": 1,
}
BODIES: dict[str, dict[str, Any]] = {
    "completion": SAMPLING | {"prompt": [1, 2, 3], "stream": True, "stream_options": {"include_usage": True}},
    "text": SAMPLING | {"prompt": "abc", "stop_token_ids": [4], "min_tokens": 1},
    "chat": SAMPLING | {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]},
    "tokenize": {"prompt": "abc"},
    "detokenize": {"tokens": [1, 2]},
}


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        del special
        return tuple(text.encode("utf-8", "replace"))

    def encode_chat(self, messages: Any) -> tuple[int, ...]:
        return self.encode("".join(turn["content"] for turn in messages), special=False)

    def decode(self, ids: Any) -> str:
        return bytes(ids).decode("utf-8", "replace")


def ask(kind: str, body: bytes) -> object:
    text: Any = Bytes()
    seeds = itertools.count()
    if kind in ("completion", "text"):
        return of_completion(read(body, CompletionRequest), SERVED, text, "r", lambda: next(seeds))
    if kind == "chat":
        return of_chat(read(body, ChatCompletionRequest), SERVED, text, "r", lambda: next(seeds))
    if kind == "tokenize":
        return of_tokenize(read(body, TokenizeRequest), SERVED, text)
    return of_detokenize(read(body, DetokenizeRequest), SERVED, text)


def asked_or_refused(kind: str, body: bytes) -> Any:
    try:
        return ask(kind, body)
    except Refusal as error:
        return error


@pytest.mark.parametrize("kind", BODIES)
def test_the_bodies_that_are_made_wrong_are_right_themselves(kind: str) -> None:
    assert ask(kind, msgspec.json.encode(BODIES[kind])) is not None


@quick_and_deep
@pytest.mark.parametrize("kind", BODIES)
def test_a_wrong_body_is_refused_with_a_reason(kind: str, deep: bool) -> None:
    def check(body: bytes) -> None:
        asked = asked_or_refused(kind, body)
        if isinstance(asked, Refusal):
            told = refusal(asked)["error"]
            assert told["message"].strip()
            assert 400 <= asked.status < 500
            msgspec.json.encode(told)
        elif kind in ("completion", "text", "chat"):
            request = asked.request
            assert 0 < len(request.prompt) + request.sampling.max_tokens <= SERVED.context_length
            assert all(0 <= token < SERVED.vocab_size for token in request.prompt)

    hammer(check, hostile_json(BODIES[kind]) | st.binary(max_size=60), deep=deep)
