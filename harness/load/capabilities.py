"""What a server is, asked before the run: model, version, fields of its API, metrics."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from harness.errors import BackendError, UsageError
from harness.load.counters import read_counters
from harness.load.wire import Capabilities

TIMEOUT_S = 20.0


def get(url: str) -> str | None:
    """The body of a GET; None when the server answers with an error status.

    Raises:
        UsageError: nothing answers at that address.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is no http(s) URL")
    try:
        with urlopen(Request(url), timeout=TIMEOUT_S) as response:  # noqa: S310 - scheme checked above
            body: bytes = response.read()
            return body.decode("utf-8", errors="replace")
    except HTTPError:
        return None
    except (URLError, TimeoutError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(f"no server answers at {url}: {reason}; start it, or correct the URL") from None


def ask(base: str, model: str | None = None) -> Capabilities:
    """Read what the server at `base` (without /v1) says of itself.

    Args:
        base: URL of the server.
        model: name to ask for; None takes the only one the server has.

    Raises:
        UsageError: no server, no such model, or several and none named.
    """
    names = _models(base)
    if model is None:
        if len(names) != 1:
            raise UsageError(f"{base} serves {len(names)} models ({', '.join(names)}); name one with --model")
        (model,) = names
    elif model not in names:
        raise UsageError(f"{base} does not serve {model!r}; it serves {', '.join(names)}")
    version = _json(get(f"{base}/version"))
    return Capabilities(
        model=model,
        version=str(version["version"]) if isinstance(version, dict) and "version" in version else None,
        fields=_fields(_json(get(f"{base}/openapi.json"))),
        metrics=counters(base) is not None,
    )


def counters(base: str) -> dict[str, float] | None:
    """The server's counters now; None when it exports none that we know."""
    text = get(f"{base}/metrics")
    if text is None:
        return None
    try:
        return read_counters(text) or None
    except ValueError:
        return None


def normalise(url: str) -> str:
    """Base URL without a trailing slash or /v1, as people paste it either way."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _models(base: str) -> list[str]:
    listed = _json(get(f"{base}/v1/models"))
    try:
        names = [str(entry["id"]) for entry in listed["data"]]
    except (KeyError, TypeError):
        raise BackendError(f"{base}/v1/models is not an OpenAI-compatible model list") from None
    if not names:
        raise BackendError(f"{base} serves no model")
    return names


def _fields(openapi: Any) -> tuple[str, ...]:
    try:
        return tuple(sorted(openapi["components"]["schemas"]["CompletionRequest"]["properties"]))
    except (KeyError, TypeError):
        return ()


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None
