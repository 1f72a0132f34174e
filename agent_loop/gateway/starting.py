"""Start a gateway beside a campaign, and what explorers are given of it: an address and a token."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agent_loop.gateway.settings import Guest, Ready, Settings
from agent_loop.records import Budget
from harness.codec import canonical_json, from_json
from harness.environment import ROOT
from harness.errors import DataError, InvalidRun, UsageError

KEY_VARIABLE = "ANTHROPIC_API_KEY"
PASSED_ON = ("PATH", "HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR")
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Door:
    """One explorer's way to the API."""

    url: str
    token: str
    socket: str | None = None

    def attempt(self, name: str, budget: Budget = Budget()) -> Door:  # noqa: B008 - frozen
        """A scope below this one, with a budget of its own.

        Raises:
            InvalidRun: the gateway refuses, or is gone.
        """
        asked = canonical_json({"name": name, "budget": budget})
        token = str(self._call("POST", "/attempts", asked)["token"])
        return Door(self.url, token, self.socket)

    def spent(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        """By scope `budget` and `spent`, of this scope and those above it.

        Raises:
            InvalidRun: the gateway is gone.
        """
        return self._call("GET", "/spent", None)

    def _call(self, method: str, path: str, body: bytes | None) -> dict[str, dict[str, dict[str, float]]]:
        place = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {self.token}"})
            response = connection.getresponse()
            found = json.loads(response.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise InvalidRun(f"the gateway does not answer: {error}; resume the campaign") from None
        finally:
            connection.close()
        if response.status != 200:
            raise InvalidRun(f"the gateway refuses: {found['error']['message']}")
        return dict(found)


@contextlib.contextmanager
def running(settings: Settings) -> Iterator[Mapping[str, Door]]:
    """A gateway in a process of its own, and the door of every explorer.

    Raises:
        UsageError: it does not start; the message is its own.
    """
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    paths = [str(ROOT), *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_loop.gateway"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )
    pipes = (process.stdin, process.stdout, process.stderr)
    try:
        ready = _greet(process, settings)
        yield {name: Door(ready.url, guest.token, ready.socket) for name, guest in settings.explorers.items()}
    finally:
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in pipes[1:]:
            if pipe is not None:
                pipe.close()


def guests(budgets: Mapping[str, Budget]) -> dict[str, Guest]:
    """Explorers with fresh tokens."""
    return {name: Guest(budget=budget, token=secrets.token_urlsafe(24)) for name, budget in budgets.items()}


def with_key(settings: Settings, key_file: Path | None, environment: MutableMapping[str, str]) -> Settings:
    """The settings with their key: a file, which only the gateway reads, else a variable, which is taken out.

    A variable that the process was started with can still be read by its user in /proc; a file is better.

    Raises:
        UsageError: there is neither.
    """
    if key_file is not None:
        return msgspec.structs.replace(settings, key_file=str(key_file.absolute()))
    key = environment.pop(KEY_VARIABLE, "")
    for name in [name for name in environment if name.startswith("ANTHROPIC_")]:
        del environment[name]  # addresses, profiles and headers would lead a client past the gateway
    if not key:
        raise UsageError(f"an explorer needs an API key: give --key-file FILE, or set {KEY_VARIABLE}")
    return msgspec.structs.replace(settings, key=key)


def _greet(process: subprocess.Popen[bytes], settings: Settings) -> Ready:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise UsageError("gateway: has no pipes")
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(canonical_json(settings) + b"\n")
        process.stdin.flush()
    line = process.stdout.readline()
    try:
        return from_json(line, Ready, "gateway")
    except DataError:
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
        raise UsageError(said[-1] if said else "gateway: ended without a word") from None
