"""Bad input is a 4xx that names its field; nothing a client can send is a 500."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.tiny import VOCAB
from tests.reference_mechanisms.serving.running import Client

CHAT = [{"role": "user", "content": "hi"}]
TABLE: tuple[tuple[str, dict[str, Any], int, str], ...] = (
    ("/v1/completions", {}, 400, "prompt"),
    ("/v1/completions", {"prompt": ""}, 200, ""),  # the tokenizer puts BOS in front
    ("/v1/completions", {"prompt": "", "add_special_tokens": False}, 400, "prompt"),
    ("/v1/completions", {"prompt": []}, 400, "prompt"),
    ("/v1/completions", {"prompt": [[]]}, 400, "prompt"),
    ("/v1/completions", {"prompt": None}, 400, "prompt"),
    ("/v1/completions", {"prompt": ["a", "b"]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [[1], [2]]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [1, "a"]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [True]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [VOCAB]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [-1]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [10**30]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [1] * 128, "max_tokens": 1}, 400, "prompt"),
    ("/v1/completions", {"prompt": [1], "max_tokens": 128}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": [1], "max_tokens": 0}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": [1], "max_tokens": "9"}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": [1], "max_tokens": 2.5}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": [1], "min_tokens": 17}, 400, "min_tokens"),
    ("/v1/completions", {"prompt": [1], "temperature": -1}, 400, "temperature"),
    ("/v1/completions", {"prompt": [1], "temperature": 1e-9}, 400, "temperature"),
    ("/v1/completions", {"prompt": [1], "top_p": 0}, 400, "top_p"),
    ("/v1/completions", {"prompt": [1], "top_k": -2}, 400, "top_k"),
    ("/v1/completions", {"prompt": [1], "min_p": 0.1}, 400, "min_p"),
    ("/v1/completions", {"prompt": [1], "seed": 2**63}, 400, "seed"),
    ("/v1/completions", {"prompt": [1], "n": 2}, 400, "n"),
    ("/v1/completions", {"prompt": [1], "best_of": 2}, 400, "best_of"),
    ("/v1/completions", {"prompt": [1], "echo": True}, 400, "echo"),
    ("/v1/completions", {"prompt": [1], "logprobs": 1}, 400, "logprobs"),
    ("/v1/completions", {"prompt": [1], "prompt_logprobs": 1}, 400, "prompt_logprobs"),
    ("/v1/completions", {"prompt": [1], "stop": ""}, 400, "stop"),
    ("/v1/completions", {"prompt": [1], "stop": ["a"] * 17}, 400, "stop"),
    ("/v1/completions", {"prompt": [1], "stop_token_ids": [VOCAB]}, 400, "stop_token_ids"),
    ("/v1/completions", {"prompt": [1], "repetition_penalty": 0}, 400, "repetition_penalty"),
    ("/v1/completions", {"prompt": [1], "frequency_penalty": 3}, 400, "frequency_penalty"),
    ("/v1/completions", {"prompt": [1], "presence_penalty": -3}, 400, "presence_penalty"),
    ("/v1/completions", {"prompt": [1], "logit_bias": {"1": 2}}, 400, "logit_bias"),
    ("/v1/completions", {"prompt": [1], "skip_special_tokens": False}, 400, "skip_special_tokens"),
    ("/v1/completions", {"prompt": [1], "stream_options": {}}, 400, "stream_options"),
    (
        "/v1/completions",
        {"prompt": [1], "stream": True, "stream_options": {"usage": 1}},
        400,
        "stream_options.usage",
    ),
    ("/v1/completions", {"prompt": [1], "tools": []}, 400, "tools"),
    ("/v1/completions", {"prompt": [1], "model": "another"}, 404, "model"),
    ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}, 400, "messages.content"),
    ("/v1/chat/completions", {"messages": [{"role": "robot", "content": "a"}]}, 400, "messages"),
    ("/v1/chat/completions", {"messages": CHAT, "prompt": "a"}, 400, "prompt"),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 128}, 400, "max_tokens"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 200}]}, 400, "messages"),
    (
        "/v1/chat/completions",
        {"messages": CHAT, "max_tokens": 3, "max_completion_tokens": 4},
        400,
        "max_completion_tokens",
    ),
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": CHAT}, 400, "prompt"),
    ("/detokenize", {"tokens": [VOCAB]}, 400, "tokens"),
)


@pytest.mark.parametrize(("path", "body", "status", "field"), TABLE)
def test_bad_input_names_its_field(
    client: Client, path: str, body: dict[str, Any], status: int, field: str
) -> None:
    answer = client.post(path, body)
    assert answer.status == status, answer
    if status != 200:
        assert answer.error["param"] == field
        assert f"`{field}`" in answer.error["message"]
        assert answer.error["code"] == status


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"prompt": "\\ud800"}', b"[" * 10_000, b"3"])
def test_what_is_no_object_is_refused(client: Client, body: bytes) -> None:
    answer = client.post("/v1/completions", body)
    assert (answer.status, answer.error["param"]) == (400, "body")


def test_a_body_may_not_be_endless(client: Client) -> None:
    answer = client.post("/v1/completions", {"prompt": "a" * (5 * 2**20)})
    assert (answer.status, answer.error["param"]) == (413, "body")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=8),
)
ANY = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4), max_leaves=6)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "prompt": st.one_of(st.text(max_size=9), st.lists(st.integers(-1, VOCAB), max_size=6), ANY),
    "max_tokens": st.one_of(st.integers(-1, 20), ANY),
    "min_tokens": st.one_of(st.integers(-1, 20), ANY),
    "temperature": st.one_of(st.floats(0, 2), st.floats(allow_nan=False), ANY),
    "top_p": st.one_of(st.floats(0, 1), ANY),
    "top_k": st.one_of(st.integers(-2, 300), ANY),
    "seed": st.one_of(st.integers(), ANY),
    "stop": st.one_of(st.text(max_size=3), st.lists(st.text(max_size=3), max_size=4), ANY),
    "stop_token_ids": st.one_of(st.lists(st.integers(-1, VOCAB), max_size=17), ANY),
    "repetition_penalty": st.one_of(st.floats(0, 3), ANY),
    "frequency_penalty": st.one_of(st.floats(-3, 3), ANY),
    "presence_penalty": st.one_of(st.floats(-3, 3), ANY),
    "ignore_eos": st.one_of(st.booleans(), ANY),
    "add_special_tokens": st.booleans(),
    "n": st.one_of(st.just(1), ANY),
    "logit_bias": st.one_of(st.just({}), ANY),
    "return_token_ids": st.booleans(),
    "unheard_of": ANY,
}
BODIES = st.dictionaries(st.sampled_from(sorted(FIELDS)), st.none(), max_size=4).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in ("prompt", *names)})
)
GOOD = st.fixed_dictionaries(
    {"prompt": st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)},
    optional={
        "max_tokens": st.integers(1, 6),
        "temperature": st.one_of(st.just(0.0), st.floats(1e-3, 100.0)),
        "top_p": st.floats(0, 1, exclude_min=True),
        "top_k": st.integers(-1, 300),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "stop": st.lists(st.text(min_size=1, max_size=3), max_size=16),
        "stop_token_ids": st.lists(st.integers(0, VOCAB - 1), max_size=16),
        "repetition_penalty": st.floats(0.01, 100.0),
        "frequency_penalty": st.floats(-2, 2),
        "presence_penalty": st.floats(-2, 2),
        "min_tokens": st.integers(0, 1),
        "ignore_eos": st.booleans(),
    },
)
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FEW
@given(body=BODIES)
def test_any_body_is_answered_or_refused_by_field(client: Client, body: dict[str, Any]) -> None:
    answer = client.post("/v1/completions", json.dumps(body).encode())
    assert answer.status in (200, 400, 404), answer
    if answer.status != 200:
        assert answer.error["param"] is not None
        assert answer.error["param"].partition(".")[0] in {*FIELDS, "body"}


@FEW
@given(body=GOOD)
def test_what_is_in_range_is_served(client: Client, body: dict[str, Any]) -> None:
    answer = client.post("/v1/completions", body)
    assert answer.status == 200, answer


@FEW
@given(messages=ANY, more=st.dictionaries(st.sampled_from(sorted(FIELDS)), ANY, max_size=2))
def test_any_chat_is_answered_or_refused_by_field(
    client: Client, messages: Any, more: dict[str, Any]
) -> None:
    answer = client.post("/v1/chat/completions", {"messages": messages, **more})
    assert answer.status == 400
    assert answer.error["param"] is not None
