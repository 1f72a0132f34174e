"""The thread that owns the engine: takes orders from a queue, steps, and hands on what became final."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from reference_mechanisms.batching.protocol import BatchEngine, Outcome
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Request

Order = Request | str | None  # submit it, cancel the one of that name, end


class Driver:
    """One engine and its thread."""

    def __init__(self, open_engine: Callable[[], BatchEngine]) -> None:
        """Nothing is loaded before `start`."""
        self._open_engine = open_engine
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(
        self, deliver: Callable[[Sequence[Outcome]], None], failed: Callable[[Exception], None]
    ) -> None:
        """Open the engine in its thread, and return when it is ready.

        Args:
            deliver: takes the outcomes of a step; called in the engine's thread.
            failed: takes what ended the engine; called in its thread, and nothing follows.

        Raises:
            Exception: what opening the engine raised.
        """
        self._thread = threading.Thread(target=self._run, args=(deliver, failed), name="engine", daemon=True)
        self._thread.start()
        error = self._ready.get()
        if error is not None:
            self._thread.join()
            raise error

    def submit(self, request: Request) -> None:
        """See `Orders`."""
        self._orders.put(request)

    def cancel(self, name: str) -> None:
        """See `Orders`."""
        self._orders.put(name)

    def close(self) -> None:
        """End the thread behind its step; what is open is dropped."""
        self._orders.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self, deliver: Callable[[Sequence[Outcome]], None], failed: Callable[[Exception], None]) -> None:
        try:
            engine = self._open_engine()
        except BaseException as error:  # noqa: BLE001 - raised again where the thread was started
            self._ready.put(error)
            return
        self._ready.put(None)
        try:
            while self._take(engine, deliver):
                if engine.busy:
                    deliver(engine.step())
        except Exception as error:  # noqa: BLE001 - a thread has no caller: those who wait must hear of it
            failed(error)
        finally:
            engine.close()

    def _take(self, engine: BatchEngine, deliver: Callable[[Sequence[Outcome]], None]) -> bool:
        """Carry out the orders that wait, and wait for one while there is nothing to do; False: end."""
        while not (engine.busy and self._orders.empty()):
            order = self._orders.get()
            if order is None:
                return False
            if isinstance(order, str):
                engine.cancel(order)
                continue
            try:
                engine.submit(order)
            except RequestError as error:
                deliver([(order.name, error)])
        return True
