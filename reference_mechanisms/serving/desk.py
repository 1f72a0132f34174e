"""Where the event loop meets the engine: admits requests up to a bound, hands out what the engine emits.

Everything here runs in the event loop; the engine's thread reaches it through `post` alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from reference_mechanisms.batching.protocol import Outcome
from reference_mechanisms.request import Event, Request
from reference_mechanisms.serving.errors import EngineFailed, NotServing, QueueFull, Refusal
from reference_mechanisms.serving.metrics import Metrics


class Orders(Protocol):
    """What the desk tells the engine's thread; returns at once."""

    def submit(self, request: Request) -> None:
        """Decode a request."""
        ...

    def cancel(self, name: str) -> None:
        """Stop decoding a request, wherever it stands."""
        ...


class Ticket:
    """One admitted request; close it in any case, or its place is never free again."""

    def __init__(self, request: Request, leave: Callable[[Ticket], None]) -> None:
        """Only the desk makes one."""
        self.request = request
        self.started = self.done = False
        self._leave = leave
        self._mail: asyncio.Queue[Event | Refusal] = asyncio.Queue()

    def put(self, outcome: Event | Refusal) -> None:
        """Hand over what has become of the request."""
        self.started = True
        self.done = self.done or isinstance(outcome, Refusal) or outcome.finish_reason is not None
        self._mail.put_nowait(outcome)

    async def events(self) -> AsyncIterator[Event]:
        """Every event, the last with its finish reason.

        Raises:
            Refusal: the engine cannot serve the request after all.
        """
        while True:
            outcome = await self._mail.get()
            if isinstance(outcome, Refusal):
                raise outcome
            yield outcome
            if outcome.finish_reason is not None:
                return

    def close(self) -> None:
        """Leave; a request that has not ended is cancelled."""
        self._leave(self)


class Desk:
    """Admits and hands out."""

    def __init__(self, orders: Orders, metrics: Metrics, most: int) -> None:
        """Nothing is open.

        Args:
            orders: to the engine.
            metrics: to count in.
            most: requests that may be with the engine, running and waiting together.
        """
        self._orders, self._metrics, self._most = orders, metrics, most
        self._open: dict[str, Ticket] = {}
        self._closed: Refusal | None = None

    @property
    def open_requests(self) -> int:
        """Requests that have not left."""
        return len(self._open)

    @property
    def serving(self) -> bool:
        """Whether requests are admitted, when there is room."""
        return self._closed is None

    def submit(self, request: Request) -> Ticket:
        """Admit a request.

        Raises:
            QueueFull: as many are open as may be.
            NotServing: the engine has failed, or the server is being stopped.
        """
        if self._closed is not None:
            raise NotServing(self._closed.message)
        live = sum(not ticket.done for ticket in self._open.values())
        if live >= self._most:
            raise QueueFull(f"{live} requests run or wait, the most this server lets in; come again")
        ticket = Ticket(request, self._left)
        self._open[request.name] = ticket
        self._orders.submit(request)
        self._told()
        return ticket

    def post(self, outcomes: Sequence[Outcome]) -> None:
        """Take what one step of the engine gave; a request that has left hears nothing."""
        for name, outcome in outcomes:
            ticket = self._open.get(name)
            if isinstance(outcome, Event):
                self._metrics.count(outcome)
                if ticket is not None and not ticket.started:
                    self._metrics.prefilled(len(ticket.request.prompt))
            if ticket is not None:
                ticket.put(outcome if isinstance(outcome, Event) else Refusal(str(outcome)))
        self._told()

    def stop(self, why: str, *, failed: bool = False) -> None:
        """Admit nothing more; with `failed`, every open request hears of it."""
        self._closed = EngineFailed(why) if failed else NotServing(why)
        for ticket in self._open.values():
            if not ticket.done:
                ticket.put(self._closed)

    def _left(self, ticket: Ticket) -> None:
        if self._open.pop(ticket.request.name, None) is None:
            return
        if not ticket.done:
            self._orders.cancel(ticket.request.name)
        self._told()

    def _told(self) -> None:
        live = [ticket for ticket in self._open.values() if not ticket.done]
        running = sum(ticket.started for ticket in live)
        self._metrics.occupied(running, len(live) - running)
