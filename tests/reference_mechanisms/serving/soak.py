"""Many requests to one server: answered, cancelled, stopped, wrong; its memory is watched from outside.

    python -m tests.reference_mechanisms.serving.soak --requests 2000 --out reports/soak

The server is a process of its own, started by the public command, so that its memory is its own. Greedy
answers are held against the first answer to the same request: a lane that a cancelled request left in
disorder would change one.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from tests.harness.tiny import write_llama

CLIENTS = 12
LANES = 4
SAMPLE_EVERY = 20  # requests between two looks at the memory
WARM = 0.25  # share of the requests before memory must be flat
PATIENCE_S = 120.0
DEPLOYMENT = """
schema = "deployment/1"
name = "tiny"
device = "cpu"
threads = 1
context_length = 128

[target]
path = "@MODEL@"
dtype = "float32"
"""
WRONG: tuple[tuple[str, bytes], ...] = tuple(
    (path, body)
    for path, bodies in (
        (
            "/v1/completions",
            (
                b"",
                b"[" * 3000,
                b'{"prompt": "a", "max_tokens": -1}',
                b'{"prompt": [1, 999999]}',
                b'{"prompt": "a", "no_such_field": 1}',
                b'{"prompt": "a", "max_tokens": 100000}',
                b'{"prompt": "a", "temperature": NaN}',
                b'{"prompt": "\xff\xfe"}',
                b'{"prompt": "' + b"x" * 3_000_000 + b'"}',
                b"x" * 5_000_000,
            ),
        ),
        ("/v1/chat/completions", (b'{"messages": []}', b'{"messages": [{"role": "x", "content": ""}]}')),
        ("/tokenize", (b"{}",)),
    )
    for body in bodies
)


@dataclass
class Found:
    """What became of the requests, and the server's memory in the course of them."""

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    tokens: int = 0
    first: dict[str, list[int]] = field(default_factory=dict)
    memory: list[tuple[int, int]] = field(default_factory=list)  # requests done, bytes
    faults: list[str] = field(default_factory=list)
    done: int = 0


@dataclass(frozen=True)
class Figures:
    """What is written down."""

    requests: int
    seed: int
    lanes: int
    clients: int
    outcomes: dict[str, int]
    tokens_received: int
    different_greedy_requests: int
    faults: list[str]
    running_at_the_end: float
    waiting_at_the_end: float
    answered_after: int  # requests at once, as many as lanes, behind all others
    memory_first_bytes: int  # mean of the first tenth behind the warm-up
    memory_last_bytes: int  # mean of the last tenth
    memory_bytes_per_request: float  # slope of a straight line behind the warm-up
    open_files_first: int
    open_files_last: int
    seconds: float


def request_of(draw: random.Random) -> dict[str, Any]:
    """A request that is right: greedy ones come again and again."""
    body: dict[str, Any] = {
        "prompt": [draw.randrange(256) for _ in range(3)] if draw.random() < 0.3 else [draw.randrange(40), 7],
        "max_tokens": draw.choice((1, 4, 16, 40, 90)),
        "temperature": 0 if draw.random() < 0.7 else 0.8,
        "return_token_ids": True,
    }
    if draw.random() < 0.3:
        body["stop"] = [chr(draw.randrange(97, 123))]
    if draw.random() < 0.2:
        body["stop_token_ids"] = [draw.randrange(256)]
    if draw.random() < 0.2:
        body["ignore_eos"] = True
    if body["temperature"]:
        body["seed"] = draw.randrange(2**31)
    return body


async def one(http: aiohttp.ClientSession, url: str, draw: random.Random, found: Found) -> None:
    """Send one request of a random kind."""
    kind = draw.choices(("whole", "stream", "leave", "abort", "wrong"), (30, 30, 20, 10, 10))[0]
    if kind == "wrong":
        path, data = draw.choice(WRONG)
        async with http.post(url + path, data=data) as answer:
            told = await answer.json()
            if not (400 <= answer.status < 500 and told["error"]["message"]):
                found.faults.append(f"a wrong body got {answer.status}: {told}")
        found.outcomes["wrong, refused"] += 1
        return
    body = request_of(draw)
    if kind == "abort":  # goes before anything has come
        sending = asyncio.ensure_future(_whole(http, url, body, found))
        await asyncio.sleep(draw.random() * 0.02)
        sending.cancel()
        ended = (await asyncio.gather(sending, return_exceptions=True))[0]
        gone = isinstance(ended, asyncio.CancelledError)
        found.outcomes["left before the answer" if gone else "answered whole"] += 1
    elif kind == "whole":
        await _whole(http, url, body, found)
        found.outcomes["answered whole"] += 1
    else:
        most = draw.randrange(1, 6) if kind == "leave" else None
        left = await _stream(http, url, body, most, found)
        found.outcomes["left inside a stream" if left else "streamed to the end"] += 1


async def _whole(http: aiohttp.ClientSession, url: str, body: dict[str, Any], found: Found) -> None:
    async with http.post(f"{url}/v1/completions", json=body) as answer:
        told = await answer.json()
        if answer.status != 200:
            found.faults.append(f"{answer.status}: {told}")
            return
    choice = told["choices"][0]
    _hold(body, choice["token_ids"], choice["finish_reason"], found)


async def _stream(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], most: int | None, found: Found
) -> bool:
    """Read a stream, or its first events; whether it was left."""
    ids: list[int] = []
    reason = None
    events = 0
    async with http.post(f"{url}/v1/completions", json={**body, "stream": True}) as answer:
        async for line in answer.content:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            choice = json.loads(line[6:])["choices"][0]
            ids += choice["token_ids"]
            reason = choice["finish_reason"] or reason
            events += 1
            if events == most:
                answer.close()
                return reason is None
    _hold(body, ids, reason, found)
    return False


def _hold(body: dict[str, Any], ids: list[int], reason: str | None, found: Found) -> None:
    """A whole answer is as long as asked for, says why it ended, and is the same every time."""
    found.tokens += len(ids)
    if reason not in ("stop", "length") or not 0 < len(ids) <= body["max_tokens"]:
        found.faults.append(f"{len(ids)} tokens of {body['max_tokens']}, finish reason {reason!r}")
    if not body["temperature"]:
        first = found.first.setdefault(json.dumps(body, sort_keys=True), ids)
        if first != ids:
            found.faults.append(f"another answer to the same greedy request {body}: {first}, then {ids}")


async def load(url: str, requests: int, seed: int, server: psutil.Process, found: Found) -> None:
    """All requests, by several clients at a time."""
    numbers = iter(range(requests))
    options = aiohttp.ClientTimeout(total=PATIENCE_S)

    async def client() -> None:
        async with aiohttp.ClientSession(timeout=options) as http:
            for number in numbers:
                try:
                    await one(http, url, random.Random(f"{seed}/{number}"), found)  # noqa: S311 - a workload
                except (aiohttp.ClientError, TimeoutError) as error:
                    found.faults.append(f"request {number}: {type(error).__name__} {error}")
                found.done += 1
                if found.done % SAMPLE_EVERY == 0:
                    found.memory.append((found.done, server.memory_info().rss))

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def afterwards(url: str) -> tuple[float, float, int]:
    """Requests that the server says run and wait, and how many at once, one a lane, it still answers."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as http:

        async def metric(name: str) -> float:
            async with http.get(f"{url}/metrics") as answer:
                lines = (await answer.text()).splitlines()
            return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))

        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        for _ in range(200):
            running, waiting = [await metric(name) for name in names]
            if not running and not waiting:
                break
            await asyncio.sleep(0.05)
        found = Found()
        body = {
            "prompt": [1, 2],
            "max_tokens": 40,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        await asyncio.gather(*(_whole(http, url, body, found) for _ in range(LANES)))
        return running, waiting, found.tokens // 40


@contextmanager
def served(folder: Path, lanes: int = LANES) -> Iterator[tuple[str, psutil.Process]]:
    """A server on the tiny target, and its process."""
    model = write_llama(folder / "target", seed=3)
    deployment = folder / "tiny.toml"
    deployment.write_text(DEPLOYMENT.replace("@MODEL@", str(model)))
    words = [
        "serve",
        str(deployment),
        "--port",
        "0",
        "--lanes",
        str(lanes),
        "--mechanism",
        "ngram",
        "drafts=4",
    ]
    log = folder / "log"
    with log.open("wb") as file:
        program = subprocess.Popen([sys.executable, "-m", "harness.cli", *words], stdout=file, stderr=file)
    try:
        end = time.monotonic() + PATIENCE_S
        while (said := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())) is None:
            if program.poll() is not None or time.monotonic() > end:
                raise RuntimeError(log.read_text())
            time.sleep(0.1)
        while not _healthy(said[0]):
            if program.poll() is not None or time.monotonic() > end:
                raise RuntimeError(log.read_text())
            time.sleep(0.1)
        yield said[0], psutil.Process(program.pid)
    finally:
        program.terminate()
        program.wait(PATIENCE_S)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 - our own server
            return True
    except OSError:
        return False


def soak(requests: int, seed: int) -> Figures:
    """Run it all."""
    found = Found()
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as (url, server):
        files = server.num_fds()
        began = time.monotonic()
        asyncio.run(load(url, requests, seed, server, found))
        seconds = time.monotonic() - began
        running, waiting, answered = asyncio.run(afterwards(url))
        last_files = server.num_fds()
    done, memory = np.array(found.memory, dtype=np.float64).T
    flat = done > WARM * requests
    tenth = max(1, int(flat.sum()) // 10)
    return Figures(
        requests=requests,
        seed=seed,
        lanes=LANES,
        clients=CLIENTS,
        outcomes=dict(sorted(found.outcomes.items())),
        tokens_received=found.tokens,
        different_greedy_requests=len(found.first),
        faults=found.faults[:20],
        running_at_the_end=running,
        waiting_at_the_end=waiting,
        answered_after=answered,
        memory_first_bytes=int(memory[flat][:tenth].mean()),
        memory_last_bytes=int(memory[flat][-tenth:].mean()),
        memory_bytes_per_request=float(np.polyfit(done[flat], memory[flat], 1)[0]),
        open_files_first=files,
        open_files_last=last_files,
        seconds=round(seconds, 1),
    )


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for figures.json")
    options = parser.parse_args()
    text = json.dumps(asdict(soak(options.requests, options.seed)), indent=2) + "\n"
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "figures.json").write_text(text)


if __name__ == "__main__":
    main()
