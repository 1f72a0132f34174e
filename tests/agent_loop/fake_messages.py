"""A loopback server that speaks the Messages API from a script, faults included.

A script is a list of steps; the step of a request is chosen by the number of assistant turns in it, so that
conversations may run side by side. A step is a list of plays: the first requests of a turn meet its faults.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-canary-of-the-real-key"
USAGE = {"input_tokens": 100, "output_tokens": 20}
Play = dict[str, Any]


def text(words: str, stop: str = "end_turn", **more: Any) -> Play:
    return {"content": [{"type": "text", "text": words}], "stop": stop, **more}


def tools(*calls: tuple[str, dict[str, Any]], stop: str = "tool_use", **more: Any) -> Play:
    return {"content": [{"type": "tool_use", "name": n, "input": i} for n, i in calls], "stop": stop, **more}


def fault(status: int, kind: str = "api_error", **headers: str) -> Play:
    return {"status": status, "kind": kind, "headers": {k.replace("_", "-"): v for k, v in headers.items()}}


class FakeMessages:
    """The server; `requests` holds the bodies it was sent, `problems` what was wrong with them."""

    def __init__(self, script: Sequence[Play | list[Play]]) -> None:
        self.begin(script)
        self.ids = itertools.count(1)
        self.lock = threading.Lock()
        self.url = ""

    def begin(self, script: Sequence[Play | list[Play]]) -> None:
        """Play another script, with nothing asked yet."""
        self.script = [step if isinstance(step, list) else [step] for step in script]
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.problems: list[str] = []
        self.seen: Counter[int] = Counter()

    def play(self, body: dict[str, Any]) -> Play:
        turn = sum(1 for message in body["messages"] if message["role"] == "assistant")
        with self.lock:
            number = self.seen[turn]
            self.seen[turn] += 1
        plays = self.script[min(turn, len(self.script) - 1)]
        return plays[min(number, len(plays) - 1)]

    def message(self, body: dict[str, Any], play: Play) -> dict[str, Any]:
        content = [
            {**block, "id": f"toolu_{next(self.ids)}"} if block["type"] == "tool_use" else block
            for block in play["content"]
        ]
        usage = None if play.get("usage") == "missing" else {**USAGE, **play.get("usage", {})}
        return {
            "id": f"msg_{next(self.ids)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": play["stop"],
            "stop_sequence": None,
            **({} if usage is None else {"usage": usage}),
        }

    def examine(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        """What the API would refuse, or what must never leave."""
        if KEY in json.dumps(body):
            self.problems.append("the key is in a body")
        if headers.get("authorization") != f"Bearer {KEY}" and headers.get("x-api-key") != KEY:
            self.problems.append("a request without the real key")
        asked: set[str] = set()
        for message in body["messages"]:
            blocks = message["content"] if isinstance(message["content"], list) else []
            results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
            if message["role"] == "user" and set(results) != asked:
                self.problems.append(f"results {results} for calls {sorted(asked)}")
            uses = [block["id"] for block in blocks if block["type"] == "tool_use"]
            asked = set(uses) if message["role"] == "assistant" else set()


def events(message: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """A message as its stream of events."""
    usage = message.get("usage")
    start = {**message, "content": [], "stop_reason": None}
    if usage is not None:
        start["usage"] = {**usage, "output_tokens": 1}
    found: list[tuple[str, dict[str, Any]]] = [("message_start", {"message": start}), ("ping", {})]
    for index, block in enumerate(message["content"]):
        if block["type"] == "tool_use":
            data = json.dumps(block["input"])
            begin = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in (data[:3], data[3:])]
        else:
            begin = {**block, "text": ""}
            deltas = [{"type": "text_delta", "text": block["text"]}]
        found.append(("content_block_start", {"index": index, "content_block": begin}))
        found += [("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
        found.append(("content_block_stop", {"index": index}))
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    end = {} if usage is None else {"usage": {"output_tokens": usage["output_tokens"]}}
    return [*found, ("message_delta", {"delta": delta, **end}), ("message_stop", {})]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        fake = self.server.fake
        headers = {name.lower(): value for name, value in self.headers.items()}
        if self.path.startswith("/v1/messages/count_tokens"):
            self._json(200, {"input_tokens": 50})
            return
        play = fake.play(body)
        fake.requests.append(body)
        fake.headers.append(headers)
        fake.examine(body, headers)
        if "cut" in play and play["cut"] == "before":
            self.close_connection = True
            return
        if "status" in play:
            error = {
                "type": "error",
                "error": {"type": play["kind"], "message": f"scripted {fake.url} {KEY}"},
            }
            self._json(play["status"], error, play["headers"])
            return
        if play.get("junk"):
            self._raw(200, b"{not json", {"content-type": "application/json"})
            return
        if "held" in play:
            play["held"].wait(timeout=20.0)
        message = fake.message(body, play)
        if not body.get("stream"):
            self._json(200, message, {"request-id": "req_1"})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("request-id", "req_1")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for told, told_data in events(message):
            name, data = told, told_data
            if play.get("cut") == "middle" and name == "content_block_stop":
                self.close_connection = True
                return
            if play.get("error") and name == "content_block_stop":
                name, data = "error", {"error": {"type": play["error"], "message": "scripted"}}
            line = json.dumps({"type": name, **data})
            if play.get("bad_json") and name == "content_block_stop":
                line = "{not json"
            self._chunk(f"event: {name}\ndata: {line}\n\n".encode())
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self._raw(status, json.dumps(value).encode(), {"content-type": "application/json", **(headers or {})})

    def _raw(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, fake: FakeMessages) -> None:
        self.fake = fake
        super().__init__(("127.0.0.1", 0), Handler)


@contextlib.contextmanager
def serving(script: Sequence[Play | list[Play]]) -> Iterator[FakeMessages]:
    """The server, for as long as it is needed."""
    fake = FakeMessages(script)
    with Server(fake) as server:
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
