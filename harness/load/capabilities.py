"""What a server is, asked before the run: model, version, fields of its API, metrics."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from harness.errors import BackendError, UsageError
from harness.load.counters import read_counters
from harness.load.told import Told, read_told
from harness.load.wire import Capabilities

TIMEOUT_S = 20.0
MAX_BYTES = 64 * 1024 * 1024  # of a page; a server that never ends one must not fill the memory


def get(url: str) -> str | None:
    """The body of a GET; None when the server answers with an error status.

    Raises:
        UsageError: nothing answers at that address.
        BackendError: the answer is too long to be one.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is no http(s) URL")
    try:
        with urlopen(Request(url), timeout=TIMEOUT_S) as response:  # noqa: S310 - scheme checked above
            body: bytes = response.read(MAX_BYTES + 1)
    except HTTPError:
        return None
    except (URLError, TimeoutError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(f"no server answers at {url}: {reason}; start it, or correct the URL") from None
    if len(body) > MAX_BYTES:
        raise BackendError(f"{url} answers with more than {MAX_BYTES} bytes; is this the server?")
    return body.decode("utf-8", errors="replace")


def ask(base: str, model: str | None = None) -> Capabilities:
    """Read what the server at `base` (without /v1) says of itself.

    Args:
        base: URL of the server.
        model: name to ask for; None takes the only one the server has.

    Raises:
        UsageError: no server, no such model, or several and none named.
    """
    served = _models(base)
    names = list(served)
    if model is None:
        if len(names) != 1:
            raise UsageError(f"{base} serves {len(names)} models ({', '.join(names)}); name one with --model")
        (model,) = names
    elif model not in names:
        raise UsageError(f"{base} does not serve {model!r}; it serves {', '.join(names)}")
    openapi = _json(get(f"{base}/openapi.json"))
    told = _told(base)
    return Capabilities(
        model=model,
        version=_version(base) or told.version,
        fields=_fields(openapi),
        native_generate=isinstance(openapi, dict) and "/generate" in (openapi.get("paths") or {}),
        metrics=counters(base) is not None,
        max_model_len=served[model].max_model_len,
        root=served[model].root,
        told=told,
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


def _version(base: str) -> str | None:
    found = _json(get(f"{base}/version"))
    return str(found["version"]) if isinstance(found, dict) and "version" in found else None


def _told(base: str) -> Told:
    """What the server tells of its settings, under the newer of the names that it knows."""
    info = _json(get(f"{base}/server_info?config_format=json")) or _json(get(f"{base}/get_server_info"))
    if info is None:
        return read_told(None, None)
    return read_told(info, _json(get(f"{base}/model_info")) or _json(get(f"{base}/get_model_info")))


class _Served(NamedTuple):
    max_model_len: int | None
    root: str | None


def _models(base: str) -> dict[str, _Served]:
    """What /v1/models says, by name of the model."""
    listed = _json(get(f"{base}/v1/models"))
    try:
        found = {str(entry["id"]): _served(entry) for entry in listed["data"]}
    except (KeyError, TypeError, AttributeError):
        raise BackendError(f"{base}/v1/models is not an OpenAI-compatible model list") from None
    if not found:
        raise BackendError(f"{base} serves no model")
    return found


def _served(entry: Any) -> _Served:
    length, root = entry.get("max_model_len"), entry.get("root")
    return _Served(
        length if isinstance(length, int) and length > 0 else None, root if isinstance(root, str) else None
    )


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
    except (ValueError, RecursionError):
        return None
