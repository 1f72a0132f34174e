"""A completions server with a real (tiny) model behind it, honest or lying. Runs in a thread."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from harness.backends.transformers_scorer import TransformersScorer
from harness.models.folder import read_folder
from harness.tokenize import PromptTokenizer
from tests.harness.load.request_fields import COMMON
from tests.harness.load.threads import serving_app
from tests.harness.tiny import EOS

VLLM = (
    *COMMON,
    *("cache_salt", "prompt_logprobs", "return_tokens_as_token_ids", "echo", "logprobs"),
)


class Target:
    """The model, shared by the servers of a module; every continuation and draw is computed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scorer = TransformersScorer(read_folder(folder, "test"), dtype="float32")
        self.tokenizer = PromptTokenizer(folder)
        self._known: dict[tuple[int, ...], list[int]] = {}
        self._drawn: dict[tuple[Any, ...], list[int]] = {}
        self._lock = threading.Lock()

    def answer(self, prompt: tuple[int, ...], count: int) -> list[int]:
        with self._lock:
            if len(self._known.get(prompt, ())) < count:
                found = [token for token, _ in itertools.islice(self.scorer.greedy(prompt), count)]
                self._known[prompt] = found
            return self._known[prompt][:count]

    def sampled(
        self, prompt: tuple[int, ...], body: Mapping[str, Any], factor: float, seed: int
    ) -> list[int]:
        """Draws after temperature and top-k, each by a random number of seed and position."""
        top_k, temperature = body.get("top_k", -1), body["temperature"] * factor
        asked = (prompt, seed, temperature, top_k, body["max_tokens"])
        if asked not in self._drawn:
            rng, ids = np.random.default_rng(seed), list[int]()
            for _ in range(body["max_tokens"]):
                row = self.logprobs(prompt, (*ids, 0))[-1]
                kept = row >= np.sort(row)[-top_k] if top_k > 0 else row > -np.inf
                warm = np.where(kept, row / temperature, -np.inf)
                ids.append(int(np.argmax(warm + rng.gumbel(size=len(row)))))
            self._drawn[asked] = ids
        return self._drawn[asked]

    def logprobs(self, prompt: tuple[int, ...], forced: tuple[int, ...]) -> np.ndarray[Any, Any]:
        with self._lock:
            rows = np.concatenate(list(self.scorer.logits(prompt, forced, None))).astype(np.float64)
        shifted = rows - rows.max(-1, keepdims=True)
        result: np.ndarray[Any, Any] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return result


@dataclass
class Manner:
    """How a server behaves."""

    seconds_per_token: float = 0.001
    prefill_seconds: float = 0.03
    per_chunk: int = 1
    fields: tuple[str, ...] = VLLM
    give_ids: bool = True
    drop_every: int | None = None  # of all tokens it ever emits
    caches: bool = False  # answers a known prompt at once
    usage_factor: float = 1.0
    fail_every: int | None = None  # requests answered 500
    counters: dict[str, int] | None = None  # of /metrics, added per request
    temperature_factor: float = 1.0  # of what it samples by
    keeps_seeds: bool = True
    most_logprobs: int = 20  # a request for more is refused
    bodies: list[dict[str, Any]] = field(default_factory=list)
    emitted: int = 0
    requests: int = 0
    seen: set[tuple[int, ...]] = field(default_factory=set)
    in_flight: int = 0
    most_in_flight: int = 0


TARGET = web.AppKey("target", Target)
MANNER = web.AppKey("manner", Manner)


async def _complete(request: web.Request) -> web.StreamResponse:
    target, manner = request.app[TARGET], request.app[MANNER]
    body = await request.json()
    unknown = sorted(set(body) - set(manner.fields) - {"n", "frequency_penalty", "presence_penalty"})
    if unknown:
        return web.json_response({"error": f"unknown field {unknown[0]}"}, status=400)
    if not body.get("stream"):
        if max(body.get("prompt_logprobs") or 0, body.get("logprobs") or 0) > manner.most_logprobs:
            return web.json_response({"error": "more than --max-logprobs"}, status=400)
        return web.json_response({"choices": [_forced(target, body)]})
    manner.bodies.append(body)
    manner.requests += 1
    if manner.fail_every is not None and manner.requests % manner.fail_every == 0:
        return web.Response(status=500, text="engine is dead")
    manner.in_flight += 1
    manner.most_in_flight = max(manner.most_in_flight, manner.in_flight)
    try:
        return await _stream(request, target, manner, body)
    finally:
        manner.in_flight -= 1


async def _stream(
    request: web.Request, target: Target, manner: Manner, body: dict[str, Any]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    prompt = tuple(body["prompt"])
    if body["temperature"]:
        seed = body["seed"] if manner.keeps_seeds else manner.requests
        tokens = target.sampled(prompt, body, manner.temperature_factor, seed)
    else:
        tokens = target.answer(prompt, body["max_tokens"])
    stopped = EOS in tokens and not body.get("ignore_eos")
    if stopped:
        tokens = tokens[: tokens.index(EOS) + 1]
    kept = []
    for token in tokens:
        manner.emitted += 1
        if manner.drop_every is None or manner.emitted % manner.drop_every:
            kept.append(token)
    known = prompt in manner.seen and manner.caches
    manner.seen.add(prompt)
    skip = body.get("skip_special_tokens", True)
    text = target.tokenizer.decode if skip else lambda ids: "".join(map(target.tokenizer.token_text, ids))
    told = ""
    if not known:
        await asyncio.sleep(manner.prefill_seconds)
    for start in range(0, len(kept), manner.per_chunk):
        part = kept[start : start + manner.per_chunk]
        last = start + manner.per_chunk >= len(kept)
        if not known:
            await asyncio.sleep(manner.seconds_per_token * len(part))
        whole = text([token for token in kept[: start + manner.per_chunk] if token != EOS])
        piece = "" if whole.endswith("\ufffd") and not last else whole[len(told) :]
        told += piece
        choice: dict[str, Any] = {
            "index": 0,
            "text": piece,
            "finish_reason": ("stop" if stopped else "length") if last else None,
        }
        if manner.give_ids:
            choice["token_ids"] = part
        await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
    usage = {"completion_tokens": round(len(kept) * manner.usage_factor)}
    await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode())
    await response.write_eof()
    return response


def _forced(target: Target, body: dict[str, Any]) -> dict[str, Any]:
    """Log-probabilities as vLLM tells them: of the prompt, or of each step."""
    ids = tuple(body["prompt"])
    if body.get("prompt_logprobs"):
        rows = target.logprobs(ids[:1], ids[1:])
        told = [
            {
                str(token): {"logprob": float(row[token])}
                for token in (*_best(row, body["prompt_logprobs"]), forced)
            }
            for row, forced in zip(rows, ids[1:], strict=True)
        ]
        return {"text": "", "finish_reason": "length", "prompt_logprobs": [None, *told]}
    if body.get("echo"):
        rows = target.logprobs(ids[:1], ids[1:])
        tops = [
            {f"token_id:{token}": float(row[token]) for token in _best(row, body["logprobs"])} for row in rows
        ]
        own = [float(row[forced]) for row, forced in zip(rows, ids[1:], strict=True)]
        logprobs = {"top_logprobs": [None, *tops], "token_logprobs": [None, *own]}
        return {"text": "", "finish_reason": "length", "logprobs": logprobs}
    tokens = tuple(target.answer(ids, body["max_tokens"]))
    stop = tokens.index(EOS) + 1 if EOS in tokens else len(tokens)
    rows = target.logprobs(ids, tokens[:stop])
    tops = [
        {f"token_id:{token}": float(row[token]) for token in _best(row, body["logprobs"])} for row in rows
    ]
    reason = "stop" if EOS in tokens else "length"
    return {"text": "", "finish_reason": reason, "logprobs": {"top_logprobs": tops}}


def _best(row: np.ndarray[Any, Any], count: int) -> list[int]:
    return [int(token) for token in np.argsort(-row, kind="stable")[:count]]


async def _openapi(request: web.Request) -> web.Response:
    properties: dict[str, dict[str, str]] = {name: {} for name in request.app[MANNER].fields}
    paths: dict[str, dict[str, str]] = {
        route.resource.canonical: {} for route in request.app.router.routes() if route.resource
    }
    schemas = {"CompletionRequest": {"properties": properties}}
    return web.json_response({"components": {"schemas": schemas}, "paths": paths})


async def _models(request: web.Request) -> web.Response:
    root = str(request.app[TARGET].folder)
    return web.json_response({"data": [{"id": "tiny", "max_model_len": 200, "root": root}]})


async def _metrics(request: web.Request) -> web.Response:
    manner = request.app[MANNER]
    if manner.counters is None:
        return web.Response(status=404)
    lines = [f"vllm:{name}_total {value * manner.requests}.0" for name, value in manner.counters.items()]
    return web.Response(text="\n".join(lines) + "\n")


def serving(
    target: Target, manner: Manner, extend: Callable[[web.Application], None] | None = None
) -> AbstractContextManager[str]:
    """Serve in a thread; the context is the base URL. `extend` adds routes of its own."""
    app = web.Application()
    app[TARGET], app[MANNER] = target, manner
    app.router.add_post("/v1/completions", _complete)
    for path, handler in (("/openapi.json", _openapi), ("/v1/models", _models), ("/metrics", _metrics)):
        app.router.add_get(path, handler)
    if extend is not None:
        extend(app)
    return serving_app(app)
