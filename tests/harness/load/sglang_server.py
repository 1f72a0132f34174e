"""SGLang's native endpoints in the shapes its server gives them, with a tiny model behind.

Log-probabilities are [value, id, text or null]; those of the prompt begin at `logprob_start_len` with
one that has no value, and the highest id of the vocabulary is told as 0. Its completions API gives
token ids in every chunk when asked (`return_token_ids`), but no log-probabilities by id.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from aiohttp import web

from tests.harness.load.model_server import MANNER, TARGET, Manner, Target, serving
from tests.harness.load.request_fields import COMMON
from tests.harness.tiny import EOS

FIELDS = (*COMMON, "echo", "logprobs")
BODY = {"input_ids", "sampling_params", "stream", "return_logprob", "logprob_start_len", "top_logprobs_num"}
BODIES: web.AppKey[list[dict[str, Any]]] = web.AppKey("bodies", list)


def serving_sglang(
    target: Target, bodies: list[dict[str, Any]], **manner: Any
) -> AbstractContextManager[str]:
    """Serve in a thread; every body sent to /generate is kept in `bodies`."""

    def extend(app: web.Application) -> None:
        app[BODIES] = bodies
        app.router.add_post("/generate", _generate)
        app.router.add_get("/server_info", _server_info)
        app.router.add_get("/model_info", _model_info)

    return serving(target, Manner(fields=FIELDS, **manner), extend)


async def _generate(request: web.Request) -> web.Response:
    target, body = request.app[TARGET], await request.json()
    if set(body) - BODY or body["top_logprobs_num"] > request.app[MANNER].most_logprobs:
        return web.json_response({"error": {"message": "bad request"}}, status=400)
    request.app[BODIES].append(body)
    ids, start, top = tuple(body["input_ids"]), body["logprob_start_len"], body["top_logprobs_num"]
    rows = target.logprobs(ids[:1], ids[1:]) if len(ids) > 1 else np.empty((0, 0))
    places = range(start + 1, len(ids))
    answer = target.answer(ids, body["sampling_params"]["max_new_tokens"])
    stop = answer.index(EOS) + 1 if EOS in answer else len(answer)
    steps = target.logprobs(ids, tuple(answer[:stop]))
    finish = {"type": "stop", "matched": EOS} if EOS in answer else {"type": "length", "length": len(answer)}
    meta = {
        "id": "0",
        "finish_reason": finish,
        "prompt_tokens": len(ids),
        "completion_tokens": stop,
        "cached_tokens": 0,
        "input_token_logprobs": [
            [None, ids[start], None],
            *([float(rows[n - 1][ids[n]]), _clipped(ids[n], rows), None] for n in places),
        ],
        "input_top_logprobs": [None, *(_top(rows[n - 1], top) for n in places)],
        "output_token_logprobs": [
            [float(row[token]), token, None] for row, token in zip(steps, answer, strict=False)
        ],
        "output_top_logprobs": [_top(row, top) for row in steps],
    }
    return web.json_response({"text": "", "output_ids": answer[:stop], "meta_info": meta})


def _top(row: np.ndarray[Any, Any], count: int) -> list[list[Any]]:
    return [[float(row[token]), int(token), None] for token in np.argsort(-row, kind="stable")[:count]]


def _clipped(token: int, rows: np.ndarray[Any, Any]) -> int:
    return token if token < rows.shape[1] - 1 else 0


async def _server_info(request: web.Request) -> web.Response:
    path = str(request.app[TARGET].folder)
    return web.json_response(
        {
            "model_path": path,
            "version": "0.5.9",
            "sampling_defaults": "model",
            "preferred_sampling_params": None,
            "speculative_algorithm": None,
            "internal_states": [],
        }
    )


async def _model_info(request: web.Request) -> web.Response:
    return web.json_response(
        {"model_path": str(request.app[TARGET].folder), "preferred_sampling_params": None}
    )
