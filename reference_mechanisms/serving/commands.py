"""`specpilot-harness serve`: one deployment with one mechanism, behind an OpenAI-compatible API."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import time
import tomllib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from reference_mechanisms.batching.settings import MAX_SLOTS
from reference_mechanisms.serving.errors import ChoiceError

if TYPE_CHECKING:
    from reference_mechanisms.serving.server import Opened

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Run = Callable[[argparse.Namespace], int]
Value = str | int | float | bool
EXIT_OK = 0
MAX_WAITING = 256


class Wanted(NamedTuple):
    """What the command line asks to be served."""

    deployment: str  # name of a built-in one, or a file
    arm: str | None  # of `plan`
    plan: str  # name of a built-in one, or a file
    params: Mapping[str, Value] | None  # of the mechanism; None: those of `arm`
    served_name: str | None  # None: the deployment's name
    lanes: int = 1  # requests that decode at a time


def register(
    subparsers: argparse._SubParsersAction[Parser],
    guard: Callable[[Run], Run],
    open_wanted: Callable[[Wanted], Opened],
) -> None:
    """Add the command `serve` to a command line.

    Args:
        subparsers: of the command line.
        guard: turns the errors of a command into those of the command line.
        open_wanted: finds deployment, target and mechanism.
    """
    serve = subparsers.add_parser(
        "serve", help="serve a deployment over an OpenAI-compatible API, with token ids and streaming"
    )
    add = serve.add_argument
    add("deployment", metavar="DEPLOYMENT", help="name of a built-in deployment, or a .toml file")
    which = serve.add_mutually_exclusive_group()
    which.add_argument("--arm", metavar="NAME", help="'ar', or an arm of --plan (default: ar)")
    which.add_argument(
        "--mechanism",
        nargs="+",
        metavar=("NAME", "FIELD=VALUE"),
        help="drafter and its parameters, as in a plan: `--mechanism dflash k=4` (k is `drafts`)",
    )
    add("--plan", default="reproduce-cpu", help="where --arm is looked up (default: %(default)s)")
    add("--host", default="127.0.0.1", help="interface to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
    add("--served-model", metavar="NAME", help="name of the model (default: the deployment's)")
    add(
        "--lanes",
        type=int,
        default=1,
        metavar="N",
        help="requests that decode at a time; 1 has the steps of single requests (default: %(default)s)",
    )
    add(
        "--queue",
        type=int,
        default=MAX_WAITING,
        metavar="N",
        help="requests that may run and wait; more get 429 with Retry-After (default: %(default)s)",
    )

    def run(options: argparse.Namespace) -> int:
        return _serve(options, open_wanted)

    serve.set_defaults(run=guard(run))


def mechanism(words: list[str]) -> dict[str, Value]:
    """Parameters of an arm from the words of `--mechanism`.

    Raises:
        ChoiceError: a word is not FIELD=VALUE, or a field is given twice.
    """
    name, *rest = words
    params: dict[str, Value] = {"drafter": "none" if name == "ar" else name}
    for word in rest:
        field, given, value = word.partition("=")
        if not given or not field:
            raise ChoiceError(f"--mechanism: {word!r} is not FIELD=VALUE")
        field = "drafts" if field == "k" else field
        if field in params:
            raise ChoiceError(f"--mechanism: `{field}` is given twice")
        params[field] = _value(value)
    return params


def _serve(options: argparse.Namespace, open_wanted: Callable[[Wanted], Opened]) -> int:
    try:
        from reference_mechanisms.serving.app import Edge  # noqa: PLC0415 - commands load only what they need
        from reference_mechanisms.serving.server import Server, bind  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise ChoiceError(
            f"serve needs the package {missing.name}: pip install 'specpilot-harness[serve]'"
        ) from None
    if not 1 <= options.lanes <= MAX_SLOTS:
        raise ChoiceError(f"--lanes must be in 1..{MAX_SLOTS}, got {options.lanes}")
    if options.queue < 1:
        raise ChoiceError(f"--queue must be at least 1, got {options.queue}")
    if not 0 <= options.port < 2**16:
        raise ChoiceError(f"--port must be in 0..65535, got {options.port}")
    wanted = Wanted(
        deployment=options.deployment,
        arm=options.arm,
        plan=options.plan,
        params=_params(options.arm, options.mechanism),
        served_name=options.served_model,
        lanes=options.lanes,
    )
    edge = Edge(time.time, lambda: secrets.token_hex(12), lambda: secrets.randbits(31))
    with bind(options.host, options.port) as bound:
        opened = open_wanted(wanted)
        server = Server(opened, edge, options.queue)
        host, port = bound.getsockname()[:2]
        told = f"[{host}]" if ":" in host else host
        print(f"{opened.about.served.name} at http://{told}:{port}/v1, until interrupted", flush=True)
        with contextlib.suppress(KeyboardInterrupt):  # not raised where the parent ignores interrupts
            server.run(bound)
        print("stopped", flush=True)
    return EXIT_OK


def _params(arm: str | None, words: list[str] | None) -> Mapping[str, Value] | None:
    if words is not None:
        return mechanism(words)
    return {"drafter": "none"} if arm in (None, "ar") else None


def _value(text: str) -> Value:
    """A value as TOML has it; anything else is text."""
    try:
        found = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return found if isinstance(found, str | int | float | bool) else text
