"""One server: engine thread, desk and HTTP face on a socket, from start to stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import uvicorn
from starlette.applications import Starlette

from reference_mechanisms.batching.protocol import BatchEngine, Outcome
from reference_mechanisms.serving.app import About, Edge, Face, build_app
from reference_mechanisms.serving.desk import Desk
from reference_mechanisms.serving.driver import Driver
from reference_mechanisms.serving.errors import ChoiceError, ServeError
from reference_mechanisms.serving.metrics import Metrics
from reference_mechanisms.serving.text import Text

STOPPING_S = 5  # how long open streams may go on when the server is told to stop


class Opened(NamedTuple):
    """A deployment with a mechanism, ready to be loaded and served."""

    about: About
    text: Text
    open_engine: Callable[[], BatchEngine]  # called once, in the thread that owns the engine


class Server:
    """Serves one deployment; `run` returns when it is told to stop."""

    def __init__(self, opened: Opened, edge: Edge, most: int) -> None:
        """Load the engine, in its thread.

        Args:
            opened: what to serve.
            edge: time and chance.
            most: requests that may run and wait together; more are told to come again.

        Raises:
            Exception: what loading raised.
        """
        metrics = Metrics(opened.about.served.name)
        self._driver = Driver(opened.open_engine)
        self.desk = Desk(self._driver, metrics, most)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: Exception | None = None
        self._driver.start(self._deliver, self._failed)
        face = Face(opened.about, opened.text, self.desk, metrics, edge)
        app = build_app(face, self._lifespan)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=STOPPING_S, lifespan="on"
        )
        self._uvicorn = uvicorn.Server(config)

    def run(self, bound: socket.socket) -> None:
        """Serve on a socket that is bound.

        Raises:
            ServeError: the engine failed.
        """
        self._uvicorn.run(sockets=[bound])
        if self._failure is not None:
            raise ServeError(f"the engine failed: {self._failure}") from self._failure

    def stop(self) -> None:
        """Have `run` return; may be called from any thread."""
        self._uvicorn.should_exit = True

    @property
    def ready(self) -> bool:
        """Whether connections are taken."""
        return self._uvicorn.started

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        del app
        self._loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            self.desk.stop("the server is being stopped")
            await self._loop.run_in_executor(None, self._driver.close)

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        """In the engine's thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.desk.post, outcomes)

    def _failed(self, error: Exception) -> None:
        """In the engine's thread."""
        self._failure = error
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._give_up, str(error))

    def _give_up(self, why: str) -> None:
        self.desk.stop(f"the engine failed: {why}", failed=True)
        self.stop()


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound and not listening yet: who comes before the engine is ready is turned away.

    Args:
        host: name or address of an interface.
        port: 0 takes a free one.

    Raises:
        ChoiceError: the address is taken or is not this machine's.
    """
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise ChoiceError(f"--host {host} --port {port}: {error}; give another") from None
    return bound
