"""What a client gets over HTTP, against the same engine asked directly."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from harness.load.capabilities import ask, counters
from harness.load.wire import request_body
from harness.models import resolve_model
from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, Sampling
from harness.tokenize import PromptTokenizer
from reference_mechanisms.backend import ReferenceSession, open_session
from reference_mechanisms.serving.fields import CompletionRequest, read
from tests.harness.tiny import EOS, VOCAB
from tests.reference_mechanisms.serving.running import Client, serving

PROMPTS = ((256, 97, 98), (256, 1), (9, 9, 9, 9, 9, 9), tuple(range(40)))


@pytest.fixture(scope="module")
def session(deployment: Deployment) -> Iterator[ReferenceSession]:
    arm = ArmSpec(name="ar", kind="ar", backend="", params={"drafter": "none"})
    found = open_session(deployment, [arm])
    yield found
    found.close()


@pytest.fixture(scope="module")
def tokenizer(deployment: Deployment) -> PromptTokenizer:
    return PromptTokenizer(resolve_model(deployment.target).path)


class Expected:
    """What autoregressive decoding gives, without a server and without drafts."""

    def __init__(self, session: ReferenceSession, prompt: tuple[int, ...], **sampling: object) -> None:
        asked = DecodeRequest(
            request_id="expected",
            prompt_token_ids=prompt,
            sampling=msgspec.convert({"max_tokens": 24, **sampling}, Sampling),
        )
        events = list(session.stream("ar", [asked]))
        self.ids = [token for event in events for token in event.token_ids]
        self.last = events[-1]

    def choice(self) -> dict[str, Any]:
        return {
            "text": self.last.text,
            "token_ids": self.ids,
            "finish_reason": self.last.finish_reason,
            "stop_reason": self.last.stop_reason,
        }


def told(choice: dict[str, Any]) -> dict[str, Any]:
    return {name: choice[name] for name in ("text", "token_ids", "finish_reason", "stop_reason")}


@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
def test_greedy_ids_are_those_of_the_engine(
    client: Client, session: ReferenceSession, prompt: tuple[int, ...]
) -> None:
    expected = Expected(session, prompt)
    choice = client.complete(list(prompt), max_tokens=24)
    assert told(choice) == expected.choice()
    assert choice["prompt_token_ids"] == list(prompt)


TOGETHER: tuple[dict[str, str | int], ...] = (
    {"drafter": "none"},
    {"drafter": "ngram", "drafts": 4},
    {"drafter": "ngram", "drafts": 4, "batch_buckets": True, "batch_prefill_rows": 3},
)


@pytest.mark.parametrize("params", TOGETHER, ids=str)
def test_requests_that_decode_together_get_what_each_would_alone(
    deployment: Deployment, session: ReferenceSession, params: dict[str, str | int]
) -> None:
    asked = [
        (prompt, {"temperature": heat, "seed": 5}, stream)
        for heat in (0.0, 0.9)
        for stream in (False, True)
        for prompt in PROMPTS
    ]

    def ask_for(one: tuple[tuple[int, ...], dict[str, Any], bool]) -> list[int]:
        prompt, fields, stream = one
        if not stream:
            ids: list[int] = client.complete(list(prompt), max_tokens=24, **fields)["token_ids"]
            return ids
        body = {"prompt": list(prompt), "max_tokens": 24, "return_token_ids": True, **fields}
        events = client.events("/v1/completions", body)
        return [token for event in events for token in event["choices"][0]["token_ids"]]

    with serving(deployment, params, lanes=4) as client, ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask_for, asked))
    assert found == [Expected(session, prompt, **fields).ids for prompt, fields, _ in asked]


SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8, "seed": 5},
    {"temperature": 1.3, "seed": -3, "top_k": 7, "top_p": 0.9},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.25},
    {"stop_token_ids": [33], "max_tokens": 60},
    {"min_tokens": 30, "max_tokens": 40, "stop_token_ids": [33, 78]},
    {"ignore_eos": True, "max_tokens": 60},
)


@pytest.mark.parametrize("fields", SAMPLING, ids=str)
def test_sampling_fields_reach_the_engine(
    client: Client, session: ReferenceSession, fields: dict[str, Any]
) -> None:
    prompt = (256, 97, 98)
    expected = Expected(session, prompt, **fields)
    choice = client.complete(list(prompt), **{"max_tokens": 24, **fields})
    assert told(choice) == expected.choice()


def test_a_stop_string_is_cut_from_text_and_stream(client: Client, session: ReferenceSession) -> None:
    prompt = (256, 97, 98)
    whole = Expected(session, prompt, max_tokens=60).last.text or ""
    stop = next(whole[at : at + 2] for at in range(4, len(whole) - 2) if whole[at : at + 2].isprintable())
    expected = Expected(session, prompt, max_tokens=60, stop=(stop,))
    assert expected.last.finish_reason == "stop"
    choice = client.complete(list(prompt), max_tokens=60, stop=stop)
    assert told(choice) == expected.choice()
    body = {"prompt": list(prompt), "max_tokens": 60, "stop": [stop], "temperature": 0}
    events = client.events("/v1/completions", body)
    assert "".join(event["choices"][0]["text"] for event in events) == expected.last.text
    assert events[-1]["choices"][0]["stop_reason"] == stop


def test_text_is_tokenised_with_special_tokens_unless_said(client: Client) -> None:
    with_bos = client.complete("hello", max_tokens=1)["prompt_token_ids"]
    without = client.complete("hello", max_tokens=1, add_special_tokens=False)["prompt_token_ids"]
    assert with_bos == [256, *without]
    assert client.complete(["hello"], max_tokens=1)["prompt_token_ids"] == with_bos
    assert client.complete([[1, 2]], max_tokens=1)["prompt_token_ids"] == [1, 2]


@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
def test_a_stream_is_the_whole_in_pieces(client: Client, prompt: tuple[int, ...]) -> None:
    choice = client.complete(list(prompt), max_tokens=40)
    body = {"prompt": list(prompt), "max_tokens": 40, "temperature": 0, "return_token_ids": True}
    *events, usage = client.events("/v1/completions", body | {"stream_options": {"include_usage": True}})
    choices = [event["choices"][0] for event in events]
    assert [token for one in choices for token in one["token_ids"]] == choice["token_ids"]
    assert "".join(one["text"] for one in choices) == choice["text"]
    assert [one["finish_reason"] for one in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == choice["finish_reason"]
    assert [one.get("prompt_token_ids") for one in choices] == [list(prompt), *[None] * (len(choices) - 1)]
    count = len(choice["token_ids"])
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": count,
        "total_tokens": len(prompt) + count,
    }


def test_ids_and_usage_come_only_where_asked_for(client: Client) -> None:
    events = client.events("/v1/completions", {"prompt": [1], "max_tokens": 3, "temperature": 0})
    assert all("token_ids" not in event["choices"][0] and "usage" not in event for event in events)


def test_a_chat_is_rendered_by_the_template(client: Client, tokenizer: PromptTokenizer) -> None:
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}]
    ids = client.post("/tokenize", {"messages": messages}).body["tokens"]
    assert tuple(ids) == tokenizer.encode_text(
        "<s><|turn|>system\nbe short<|turn|>user\nhi<|turn|>assistant\n"
    )
    asked = {"messages": messages, "max_completion_tokens": 9, "temperature": 0, "return_token_ids": True}
    answer = client.post("/v1/chat/completions", asked).body
    plain = client.complete(ids, max_tokens=9)
    assert answer["object"] == "chat.completion"
    assert answer["prompt_token_ids"] == ids
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": plain["text"]}
    assert answer["choices"][0]["token_ids"] == plain["token_ids"]
    events = client.events("/v1/chat/completions", asked)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta["content"] for delta in deltas) == plain["text"]
    assert [delta.get("role") for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    parts = [{"role": "system", "content": "be short"}, {"role": "user", "content": [{"text": "hi"}]}]
    assert client.post("/tokenize", {"messages": parts}).body["tokens"] == ids


def test_a_chat_without_a_length_may_use_the_whole_context(client: Client) -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "ignore_eos": True}
    usage = client.post("/v1/chat/completions", asked).body["usage"]
    assert usage["total_tokens"] == 128


def test_without_a_seed_the_edge_gives_one_and_with_one_draws_repeat(client: Client) -> None:
    seeded = [client.complete([1], temperature=1.0, seed=7, max_tokens=20)["token_ids"] for _ in range(2)]
    unseeded = client.complete([1], temperature=1.0, max_tokens=20)["token_ids"]
    other = client.complete([1], temperature=1.0, seed=8, max_tokens=20)["token_ids"]
    assert seeded[0] == seeded[1] == unseeded  # the edge of these tests draws 7
    assert other != unseeded


def test_the_harness_reads_what_the_server_is(client: Client, deployment: Deployment) -> None:
    found = ask(client.url)
    assert (found.model, found.max_model_len, found.metrics) == ("tiny", 128, True)
    assert found.root == deployment.target.path
    assert not found.native_generate
    assert not found.knows("return_tokens_as_token_ids")
    assert found.told.engine == "specpilot-harness"
    assert found.told.settings["speculative_config.method"] == "ngram"
    request = DecodeRequest(request_id="r", prompt_token_ids=(1, 2), sampling=Sampling(max_tokens=3))
    body = request_body(request, found, "salt")
    assert body["return_token_ids"] is True
    assert body["cache_salt"] == "salt"
    read(msgspec.json.encode(body), CompletionRequest)


def test_counters_are_sums_over_what_was_emitted(client: Client, session: ReferenceSession) -> None:
    prompt = (9, 9, 9, 9, 9, 9)
    before = counters(client.url)
    choice = client.complete(list(prompt), max_tokens=40)
    after = counters(client.url)
    assert before is not None
    assert after is not None
    changed = {name: after[name] - before[name] for name in after}
    assert changed["prompt_tokens"] == len(prompt)
    assert changed["generation_tokens"] == len(choice["token_ids"])
    assert changed["prefix_cache_hits"] == 0
    assert changed["num_drafts"] <= changed["num_draft_tokens"]
    assert 0 < changed["num_accepted_tokens"] <= changed["num_draft_tokens"]
    # Each verify step emits one token beside those it accepts, and the prefill one; the last may be cut.
    assert changed["num_accepted_tokens"] + changed["num_drafts"] <= changed["generation_tokens"]


def test_tokenize_and_detokenize_are_each_others_inverse(client: Client) -> None:
    tokens = client.post("/tokenize", {"prompt": "a b", "add_special_tokens": False}).body["tokens"]
    assert client.post("/detokenize", {"tokens": tokens}).body == {"prompt": "a b"}


def test_small_questions_are_answered(client: Client) -> None:
    assert client.get("/health").status == 200
    assert client.get("/v1/models").body["data"][0]["id"] == "tiny"
    assert client.get("/openapi.json").body["paths"]["/v1/completions"]["post"]
    assert set(client.get("/version").body) == {"version"}
    nowhere = client.get("/v1/nothing")
    assert nowhere.status == 404
    assert "/v1/nothing" in nowhere.error["message"]
    wrong = client.get("/v1/completions")
    assert wrong.status == 405
    assert wrong.headers["allow"] == "POST"


def test_the_vocabulary_ends_where_the_schema_says(client: Client) -> None:
    assert client.complete([VOCAB - 1], max_tokens=1)["finish_reason"] in ("stop", "length")
    assert client.complete([EOS], max_tokens=1)["token_ids"]
