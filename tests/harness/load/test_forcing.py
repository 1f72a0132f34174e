"""Ways to force tokens through a server: each gives what the model behind it says, or one clear refusal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from harness.errors import InvalidRun, UsageError
from harness.load.capabilities import ask
from harness.load.forcing import Way, choose_way
from harness.load.wire import Capabilities
from tests.harness.load.model_server import VLLM, Manner, Target, serving
from tests.harness.load.sglang_server import serving_sglang
from tests.harness.load.threads import serving_app
from tests.harness.tiny import write_llama

Open = Callable[[Target], AbstractContextManager[str]]
SERVERS: dict[str, Open] = {
    "prompt_logprobs": lambda target: serving(target, Manner()),
    "echo": lambda target: serving(
        target, Manner(fields=tuple(name for name in VLLM if name != "prompt_logprobs"))
    ),
    "/generate": lambda target: serving_sglang(target, []),
}
PROMPT, TOP = (1, 5, 9), 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(write_llama(tmp_path_factory.mktemp("forced") / "target", seed=5))


def way_to(url: str, top: int = TOP) -> Way:
    return choose_way(url, ask(url), top)


@pytest.mark.parametrize("name", SERVERS)
def test_forced_tokens_are_told_as_the_model_says(target: Target, name: str) -> None:
    last = target.logprobs(PROMPT, (0,)).shape[1] - 1  # SGLang clips this id
    forced = (7, last, 3)
    rows = target.logprobs(PROMPT, forced)
    with SERVERS[name](target) as url:
        way = way_to(url)
        told = way.forced((*PROMPT, *forced), 3)
        assert way.forced((*PROMPT, *forced), 1) == [pytest.approx(told[-1], abs=1e-4)]
    assert way.name == name
    for position, row, token in zip(told, rows, forced, strict=True):
        best = np.argsort(-row, kind="stable")[:TOP]
        assert set(position) == {*map(int, best), token}
        assert all(value == pytest.approx(float(row[one]), abs=1e-4) for one, value in position.items())


@pytest.mark.parametrize("name", SERVERS)
def test_greedy_steps_are_the_models_own(target: Target, name: str) -> None:
    with SERVERS[name](target) as url:
        told, ended = way_to(url).steps(PROMPT, 6)
    answer = target.answer(PROMPT, 6)[: len(told)]
    assert [max(position, key=position.__getitem__) for position in told] == answer
    assert ended is (len(told) < 6)


@pytest.mark.parametrize("name", SERVERS)
def test_more_tokens_than_the_server_tells_are_refused_at_once(target: Target, name: str) -> None:
    with SERVERS[name](target) as url, pytest.raises(UsageError, match="21 best tokens of a position"):
        way_to(url, 21)


def test_a_server_that_quietly_tells_fewer_tokens_is_refused(target: Target) -> None:
    async def answer(request: web.Request) -> web.Response:
        meta = {
            "input_token_logprobs": [[None, 0, None], [-1.0, 1, None]],
            "input_top_logprobs": [None, [[-0.5, 7, None], [-1.0, 1, None]]],
        }
        return web.json_response({"meta_info": meta})

    app = web.Application()
    app.router.add_post("/generate", answer)
    native = Capabilities(model="m", version=None, fields=(), metrics=False, native_generate=True)
    with serving_app(app) as url:
        assert choose_way(url, native, 2).name == "/generate"
        with pytest.raises(UsageError, match="tells fewer than the 3 best tokens"):
            choose_way(url, native, 3)


def test_a_server_that_names_no_ids_is_refused_with_the_mend(target: Target) -> None:
    fields = tuple(name for name in VLLM if name != "return_tokens_as_token_ids")
    with serving(target, Manner(fields=fields)) as url, pytest.raises(UsageError, match="--force transform"):
        way_to(url)


@pytest.mark.parametrize(
    "meta",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"input_token_logprobs": [], "input_top_logprobs": []}, id="too few"),
        pytest.param(
            {
                "input_token_logprobs": [[None, 1, None], ["x", 1, None]],
                "input_top_logprobs": [None, [[-1.0, 1, None]]],
            },
            id="no number",
        ),
        pytest.param(None, id="no meta_info"),
    ],
)
def test_an_answer_of_another_shape_is_an_invalid_run(target: Target, meta: Any) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"text": ""} if meta is None else {"meta_info": meta})

    with contextlib.ExitStack() as stack:
        way = way_to(stack.enter_context(serving_sglang(target, [])))
        broken = web.Application()
        broken.router.add_post("/generate", answer)
        url = stack.enter_context(serving_app(broken))
        other = type(way)(url, TOP)  # type: ignore[call-arg]
        with pytest.raises(InvalidRun, match="no completion with log-probabilities"):
            other.forced((1, 2), 1)


def test_a_server_that_is_gone_is_an_invalid_run(target: Target, tmp_path: Path) -> None:
    with serving(target, Manner()) as url:
        way = way_to(url)
    with pytest.raises(InvalidRun, match="stopped answering"):
        way.forced((1, 2), 1)
