"""Arms that are servers: any OpenAI-compatible completions endpoint, one URL an arm.

Prompts are sent as token ids, so that no server applies a template of its own. Token ids are taken
from the stream where the server gives them; otherwise the text is tokenised again and the report
says so. Every request carries a salt of its own where the server knows one, so that a prefix cache
does not answer for the engine.
"""

from __future__ import annotations

import bisect
import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from harness.backends.params import refuse_unknown
from harness.errors import UsageError
from harness.load.arrivals import poisson_arrivals
from harness.load.capabilities import ask, counters, normalise
from harness.load.client import Reply
from harness.load.counters import delta
from harness.load.generator import drive
from harness.load.overhead import ClientOverhead, measure_overhead
from harness.load.wire import Capabilities, request_body
from harness.models import resolve_model, sampling_defaults
from harness.plan import ArmSpec, Deployment
from harness.protocols import Clock, Exchange
from harness.records import Chunk, DecodeRequest, FinishReason
from harness.tokenize import PromptTokenizer

NUMBERS = {"concurrency": 1.0, "request_rate": 0.0, "timeout_s": 600.0, "arrival_seed": 0.0}
KNOWN = ("url", "model", *NUMBERS)


class ServerArm:
    """One server, asked what it is before it is measured."""

    def __init__(self, spec: ArmSpec, model_defaults: Mapping[str, Any]) -> None:
        """Ask the server.

        Args:
            spec: the arm.
            model_defaults: sampling defaults of the model itself, which a server may take.

        Raises:
            UsageError: a parameter is wrong, nothing answers, or the model is not there.
        """
        where = f"arms[{spec.name}].params"
        refuse_unknown(spec, KNOWN, "a server")
        url, model = spec.params.get("url"), spec.params.get("model")
        if not isinstance(url, str):
            raise UsageError(f"{where}: `url` is missing; give the server's address")
        if model is not None and not isinstance(model, str):
            raise UsageError(f"{where}: `model` must be a name, got {model!r}")
        numbers = {name: _number(spec, name, default) for name, default in NUMBERS.items()}
        self.concurrency = int(numbers["concurrency"])
        self.request_rate = numbers["request_rate"]
        self.timeout_s = numbers["timeout_s"]
        self.arrival_seed = int(numbers["arrival_seed"])
        self.base = normalise(url)
        self.capabilities: Capabilities = ask(self.base, model)
        self._model_defaults = dict(model_defaults)
        self._counters = counters(self.base)
        self._asked: dict[str, Any] = {}

    def start_counting(self) -> None:
        """Counters are told from here on."""
        self._counters = counters(self.base)

    def describe(self) -> dict[str, Any]:
        """What the server said of itself, its counters since `start_counting`, and the last body sent."""
        now = counters(self.base)
        known = self._counters is not None and now is not None
        changed = delta(self._counters or {}, now or {}) if known else None
        return {
            "url": self.base,
            "model": self.capabilities.model,
            "version": self.capabilities.version,
            "root": self.capabilities.root,
            "max_model_len": self.capabilities.max_model_len,
            "told": msgspec.to_builtins(self.capabilities.told),
            "model_defaults": self._model_defaults,
            "token_ids": self.capabilities.knows("return_token_ids"),
            "cache_salt": self.capabilities.knows("cache_salt"),
            "counters": {} if changed is None else msgspec.to_builtins(changed),
            "request": self._asked,
        }

    def send(self, requests: Sequence[DecodeRequest], clock: Clock, *, turn: int) -> list[Reply]:
        """Send a set at the arm's concurrency or rate; `turn` moves the arrivals of each set on."""
        bodies = [request_body(request, self.capabilities, secrets.token_hex(16)) for request in requests]
        if bodies:
            hidden = ("prompt", "cache_salt")
            self._asked = {key: value for key, value in bodies[-1].items() if key not in hidden}
        arrivals = None
        if self.request_rate > 0.0:
            arrivals = poisson_arrivals(len(bodies), self.request_rate, f"{self.arrival_seed}/{turn}")
        return drive(
            f"{self.base}/v1/completions",
            bodies,
            clock,
            concurrency=self.concurrency,
            arrivals=arrivals,
            timeout_s=self.timeout_s,
        )


class OpenAIServerSession:
    """See `harness.protocols.ServerSession`."""

    def __init__(self, arms: Mapping[str, ServerArm], tokenizer: Callable[[], PromptTokenizer]) -> None:
        """Take servers that have been asked; the tokenizer is asked for where one gives no ids."""
        self._arms = dict(arms)
        self._tokenizer = tokenizer
        self._turns = dict.fromkeys(arms, 0)
        self._overhead: ClientOverhead | None = None

    def describe(self) -> dict[str, Any]:
        """Each server by the name of its arm."""
        return {
            "engine": "servers over the OpenAI completions API",
            "device": "remote",
            "client_overhead": None if self._overhead is None else msgspec.to_builtins(self._overhead),
            "arms": {name: arm.describe() for name, arm in self._arms.items()},
        }

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        """Nothing is sent: a prompt met before its measurement could be answered from a cache."""
        del requests
        self._arms[arm].start_counting()

    def exchange(self, arm: str, requests: Sequence[DecodeRequest], clock: Clock) -> list[Exchange]:
        """See `harness.protocols.ServerSession`; the first call measures the client first."""
        if self._overhead is None:
            most = max(server.concurrency for server in self._arms.values())
            self._overhead = measure_overhead(clock, most)
        turn = self._turns[arm]
        self._turns[arm] = turn + 1
        replies = self._arms[arm].send(requests, clock, turn=turn)
        return [read_reply(reply, self._tokenizer) for reply in replies]

    def close(self) -> None:
        """The servers are not ours: they stay."""


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> OpenAIServerSession:
    """Ask every arm's server what it is.

    Args:
        deployment: its target holds the tokenizer.
        arms: `params`: `url`, and optionally `model`, `concurrency` (requests in flight),
            `request_rate` (per second, Poisson; 0 is off), `arrival_seed`, `timeout_s` (a slower
            request has failed).

    Raises:
        UsageError: a parameter is wrong, a server does not answer, or the context is too long.
        ModelError: the tokenizer, which a server that gives no ids needs, cannot be loaded.
    """
    model = resolve_model(deployment.target)
    defaults = sampling_defaults(model.path)
    opened = {arm.name: ServerArm(arm, defaults) for arm in arms}
    for name, arm in opened.items():
        longest = arm.capabilities.max_model_len
        if longest is not None and deployment.context_length > longest:
            raise UsageError(
                f"deployment `context_length` = {deployment.context_length}: the server of arm {name} "
                f"takes {longest}"
            )
    tokenizer = functools.cache(lambda: PromptTokenizer(model.path))
    if not all(arm.capabilities.knows("return_token_ids") for arm in opened.values()):
        tokenizer()  # it takes seconds: not between two measurements
    return OpenAIServerSession(opened, tokenizer)


def read_reply(reply: Reply, tokenizer: Callable[[], PromptTokenizer]) -> Exchange:
    """Ids, counts and text of a reply; ids from the text where the server gave none.

    Tokens are counted by ids. Text is tokenised once, as a whole, and a token counts to the chunk in
    which its text begins, so that the sum is that of the whole text.
    """
    if reply.error is not None:
        return Exchange(
            sent_ns=reply.sent_ns, end_ns=reply.end_ns, refusals=reply.refusals, error=reply.error
        )
    text = "".join(chunk.text for chunk in reply.chunks)
    given = [chunk.token_ids for chunk in reply.chunks]
    retokenised = any(ids is None for ids in given)
    if retokenised:
        found, starts = tokenizer().encode_with_starts(text)
        ids = _with_end(found, reply, tokenizer().eos_token_id)
        chunks, known, length = [], 0, 0
        for number, chunk in enumerate(reply.chunks, 1):
            length += len(chunk.text)
            last = number == len(reply.chunks)
            count = len(ids) if last else max(known, bisect.bisect_left(starts, length))
            chunks.append(Chunk(num_tokens=count - known, at_ns=chunk.at_ns))
            known = count
    else:
        ids = tuple(token for one in given if one is not None for token in one)
        chunks = [
            Chunk(num_tokens=len(one), at_ns=chunk.at_ns)
            for one, chunk in zip(given, reply.chunks, strict=True)
            if one is not None
        ]
    reason: FinishReason | None = (
        "stop" if reply.finish_reason == "stop" else "length" if reply.finish_reason == "length" else None
    )
    return Exchange(
        sent_ns=reply.sent_ns,
        end_ns=reply.end_ns,
        token_ids=ids,
        chunks=tuple(chunks),
        text=text if text or retokenised else None,  # a server without a tokenizer gives ids alone
        finish_reason=reason,
        stop_reason=reply.stop_reason,
        usage_tokens=reply.usage_tokens,
        retokenised=retokenised,
        refusals=reply.refusals,
        error=None if reason is not None else f"the server gave finish reason {reply.finish_reason!r}",
    )


def _with_end(ids: tuple[int, ...], reply: Reply, eos: int | None) -> tuple[int, ...]:
    """A stop token has no text: put back the one that the finish reason speaks of."""
    if reply.finish_reason != "stop" or isinstance(reply.stop_reason, str):
        return ids
    end = reply.stop_reason if reply.stop_reason is not None else eos
    return ids if end is None or ids[-1:] == (end,) else (*ids, end)


def _number(spec: ArmSpec, name: str, default: float) -> float:
    value = spec.params.get(name, default)
    least = 1.0 if name in ("concurrency", "timeout_s") else 0.0
    if not isinstance(value, int | float) or isinstance(value, bool) or value < least:
        raise UsageError(f"arms[{spec.name}].params: `{name}` must be at least {least:g}, got {value!r}")
    if name in ("concurrency", "arrival_seed") and value != int(value):
        raise UsageError(f"arms[{spec.name}].params: `{name}` must be a whole number, got {value!r}")
    return float(value)
