"""What servers send: streams, chunks, what they say of themselves. None may fill the memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import strategies as st

from harness.errors import BackendError
from harness.load import capabilities
from harness.load.counters import read_counters
from harness.load.sse import MAX_EVENT_BYTES, EventParser
from harness.load.told import read_told
from harness.load.wire import parse_chunk
from tests.fuzz.hammering import hammer, quick_and_deep, refuses_or_reads
from tests.fuzz.mutating import NESTED, broken, hostile_json, scrambled

CHUNK = {
    "id": "cmpl-1",
    "object": "text_completion",
    "choices": [
        {
            "index": 0,
            "text": "a",
            "token_ids": [1, 2],
            "finish_reason": "stop",
            "stop_reason": 2,
            "logprobs": None,
        }
    ],
    "usage": {"completion_tokens": 3, "prompt_tokens": 2},
}
STREAM = b": hello\r\ndata: " + json.dumps(CHUNK).encode() + b"\n\ndata: [DONE]\n\n"


@quick_and_deep
def test_an_event_is_read_or_refused(deep: bool) -> None:
    hammer(lambda data: refuses_or_reads(lambda: parse_chunk(data)), hostile_json(CHUNK), deep=deep)


@quick_and_deep
def test_events_do_not_hang_on_how_the_network_cuts(deep: bool) -> None:
    def check(stream: bytes, cuts: list[int]) -> None:
        whole, pieces = EventParser(), EventParser()
        expected = whole.feed(stream)
        found: list[bytes] = []
        start = 0
        for cut in sorted(cut % (len(stream) + 1) for cut in cuts):
            found += pieces.feed(stream[start:cut])
            start = cut
        found += pieces.feed(stream[start:])
        assert found == expected
        assert pieces.pending() == whole.pending()

    hammer(check, scrambled(STREAM), st.lists(st.integers(0, 500), max_size=6), deep=deep)


@pytest.mark.parametrize(
    "piece", [b"x" * 4096, b"data: " + b"x" * 4096 + b"\n", b"data:\n", b"data: \n" * 100], ids=range(4)
)
def test_an_event_without_an_end_is_given_up(piece: bytes) -> None:
    parser = EventParser()
    once = piece * (2**16 // len(piece) + 1)

    def follow() -> None:
        for _ in range(8 * MAX_EVENT_BYTES // len(once)):
            parser.feed(once)

    with pytest.raises(BackendError, match="more than"):
        follow()


PAGES: dict[str, Any] = {
    "v1/models": {"data": [{"id": "m", "max_model_len": 2048, "root": "/models/m"}]},
    "openapi.json": {
        "components": {"schemas": {"CompletionRequest": {"properties": {"prompt": {}}}}},
        "paths": {},
    },
    "version": {"version": "0.32.0"},
    "server_info?config_format=json": {"vllm_config": {"model_config": {"dtype": "bfloat16", "seed": 0}}},
    "metrics": None,
    "get_server_info": None,
    "model_info": None,
    "get_model_info": None,
}


@quick_and_deep
@pytest.mark.parametrize("page", ["v1/models", "openapi.json", "version", "server_info?config_format=json"])
def test_what_a_server_says_of_itself_is_read_or_refused(
    page: str, deep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {name: None if value is None else json.dumps(value) for name, value in PAGES.items()}

    def get(url: str) -> str | None:
        return answers[url.removeprefix("http://a/")]

    monkeypatch.setattr(capabilities, "get", get)

    def check(data: bytes) -> None:
        answers[page] = data.decode("utf-8", "replace")
        refuses_or_reads(lambda: capabilities.ask("http://a"), "http://a")

    hammer(check, hostile_json(PAGES[page]), deep=deep, quick=30)


@quick_and_deep
def test_settings_of_a_server_are_read_whatever_they_are(deep: bool) -> None:
    vllm = {"vllm_config": {"model_config": {"generation_config": "vllm", "override_generation_config": {}}}}
    sglang = {"model_path": "m", "version": "1", "sampling_defaults": "openai", "dtype": "auto"}
    hammer(read_told, broken([vllm, sglang]), broken(sglang), deep=deep)


@quick_and_deep
def test_counters_are_read_or_are_no_counters(deep: bool) -> None:
    text = b'# TYPE vllm:num_preemptions counter\nvllm:num_preemptions_total{engine="0"} 3.0\n'

    def check(data: bytes) -> None:
        try:
            read_counters(data.decode("utf-8", "replace"))
        except ValueError:
            return  # what `capabilities.counters` catches

    hammer(check, scrambled(text), deep=deep)


def test_a_page_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        def __enter__(self) -> Endless:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read(self, most: int | None = None) -> bytes:
            assert most is not None, "everything at once"
            return b"x" * most

    monkeypatch.setattr(capabilities, "urlopen", lambda *_args, **_options: Endless())
    with pytest.raises(BackendError, match="more than"):
        capabilities.get("http://a/v1/models")


@pytest.mark.parametrize("data", NESTED, ids=range(len(NESTED)))
def test_nested_answers_are_no_answers(data: bytes) -> None:
    assert capabilities._json(data.decode()) is None
    with pytest.raises(BackendError):
        parse_chunk(b'{"error":' + data)
