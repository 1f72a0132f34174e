"""Requests one after the other through a decoder of batches, a step at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence

from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Event, Request
from reference_mechanisms.serving.driver import Outcome
from reference_mechanisms.serving.errors import Refusal

Decoding = Generator[Event, None, None]


class OneByOne:
    """See `serving.driver.Engine`: the request that came first is decoded, the others wait.

    A step of it is a step of the decoder, so that text streams and a cancelled request gives up its
    place behind the step it is in.
    """

    def __init__(self, stream: Callable[[Request], Decoding], close: Callable[[], None]) -> None:
        """Take a decoder.

        Args:
            stream: decodes one request; closing what it returns stops it.
            close: lets go of the decoder.
        """
        self._stream, self._close = stream, close
        self._waiting: OrderedDict[str, Request] = OrderedDict()
        self._name = ""
        self._decoding: Decoding | None = None

    @property
    def busy(self) -> bool:
        """See `Engine`."""
        return self._decoding is not None or bool(self._waiting)

    def submit(self, request: Request) -> None:
        """See `Engine`; whether it fits the target shows at its first step."""
        self._waiting[request.name] = request

    def cancel(self, name: str) -> None:
        """See `Engine`."""
        self._waiting.pop(name, None)
        if self._decoding is not None and name == self._name:
            self._end()

    def step(self) -> Sequence[Outcome]:
        """See `Engine`."""
        if self._decoding is None:
            self._name, request = self._waiting.popitem(last=False)
            self._decoding = self._stream(request)
        name = self._name
        try:
            event = next(self._decoding)
        except RequestError as error:
            self._end()
            return [(name, Refusal(str(error)))]
        if event.finish_reason is not None:
            self._end()
        return [(name, event)]

    def close(self) -> None:
        """See `Engine`."""
        self._waiting.clear()
        self._end()
        self._close()

    def _end(self) -> None:
        if self._decoding is not None:
            self._decoding.close()
            self._decoding = None
