"""A real server in a thread, on the tiny target, and a client that speaks plain HTTP to it."""

from __future__ import annotations

import dataclasses
import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.cli_serving import open_arm
from harness.plan import ArmSpec, Deployment
from reference_mechanisms.batching.protocol import BatchEngine, Outcome
from reference_mechanisms.request import Event, Request
from reference_mechanisms.serving.app import Edge
from reference_mechanisms.serving.errors import ServeError
from reference_mechanisms.serving.server import Server, bind

PATIENCE_S = 20.0


class Answer(NamedTuple):
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def error(self) -> Any:
        return self.body["error"]


@dataclass
class Gate:
    """An engine whose steps wait for a turnstile, and which can be told to fail."""

    engine: BatchEngine | None = None
    turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    opened: bool = False
    failure: Exception | None = None
    cancelled: list[str] = field(default_factory=list)
    decoded: set[str] = field(default_factory=set)
    hashing: bool = False  # whether logits are hashed, which no client can ask for
    hashes: dict[str, str | None] = field(default_factory=dict)  # by the id of the answer

    @property
    def inner(self) -> BatchEngine:
        assert self.engine is not None
        return self.engine

    @property
    def busy(self) -> bool:
        return self.inner.busy

    def submit(self, request: Request) -> str:
        return self.inner.submit(dataclasses.replace(request, capture_logits=self.hashing))

    def cancel(self, name: str) -> None:
        self.cancelled.append(name)
        self.inner.cancel(name)

    def step(self) -> Sequence[Outcome]:
        if not self.opened:
            assert self.turns.acquire(timeout=PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        outcomes = self.inner.step()
        self.decoded |= {name for name, _ in outcomes}
        self.hashes |= {
            name: event.logits_sha256
            for name, event in outcomes
            if isinstance(event, Event) and event.finish_reason is not None
        }
        return outcomes

    def close(self) -> None:
        self.inner.close()

    def open(self) -> None:
        self.opened = True
        self.turns.release()


@dataclass
class Client:
    server: Server
    port: int
    gate: Gate

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: object) -> Answer:
        return self.raw("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())

    def get(self, path: str) -> Answer:
        return self.raw("GET", path, None)

    def raw(self, method: str, path: str, body: bytes | None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            is_json = (response.headers.get("Content-Type") or "").startswith("application/json")
            return Answer(
                response.status, json.loads(text) if is_json else text.decode(), dict(response.headers)
            )
        finally:
            connection.close()

    def complete(self, prompt: object, **fields: object) -> Any:
        """The only choice of a completion, greedy unless said."""
        body = {"prompt": prompt, "temperature": 0, "return_token_ids": True, **fields}
        answer = self.post("/v1/completions", body)
        assert answer.status == 200, answer
        return answer.body["choices"][0]

    def events(self, path: str, body: Mapping[str, object]) -> list[Any]:
        """Every event of a stream; its end marker is held."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status == 200, answer
        *events, end = [line.removeprefix("data: ") for line in answer.body.split("\n\n") if line]
        assert end == "[DONE]"
        return [json.loads(event) for event in events]

    @contextmanager
    def streaming(self, body: Mapping[str, object]) -> Iterator[http.client.HTTPResponse]:
        """A stream that is open; leaving the block goes away from it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}).encode())
        response = connection.getresponse()
        try:
            yield response
        finally:
            response.close()
            connection.close()

    def metric(self, name: str) -> float:
        lines = [line for line in self.get("/metrics").body.splitlines() if line.startswith(f"{name}{{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@contextmanager
def serving(
    deployment: Deployment,
    params: Mapping[str, str | int | float | bool],
    *,
    most: int = 64,
    gated: bool = False,
    lanes: int = 1,
) -> Iterator[Client]:
    """Serve until the block ends."""
    arm = ArmSpec(name="served", kind="candidate", backend="", params=dict(params))
    opened = open_arm(deployment, arm, lanes=lanes)
    gate = Gate(opened=not gated)

    def open_engine() -> BatchEngine:
        gate.engine = opened.open_engine()
        return gate

    counter = itertools.count()
    edge = Edge(lambda: 1.0e9, lambda: f"r{next(counter)}", lambda: 7)
    server = Server(opened._replace(open_engine=open_engine), edge, most)
    bound = bind("127.0.0.1", 0)
    failures: list[Exception] = []

    def run() -> None:
        try:
            server.run(bound)
        except ServeError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    await_that(lambda: server.ready)
    try:
        yield Client(server, bound.getsockname()[1], gate)
    finally:
        gate.open()
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert [str(one) for one in failures] == ([] if gate.failure is None else ["the engine failed: broken"])


def await_that(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it never held"
        time.sleep(0.002)
