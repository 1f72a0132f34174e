"""Requests one after the other through a decoder of batches, a step at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence

from reference_mechanisms.batching.protocol import Outcome
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Event, Request

Decoding = Generator[Event, None, None]


class OneByOne:
    """See `BatchEngine`: the request that came first is decoded, the others wait.

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
        """See `BatchEngine`."""
        return self._decoding is not None or bool(self._waiting)

    def submit(self, request: Request) -> str:
        """See `BatchEngine`; whether it fits the target shows at its first step."""
        if request.name in self._waiting or (self._decoding is not None and request.name == self._name):
            raise RequestError(f"{request.name}: a request of this name has not ended; give another name")
        self._waiting[request.name] = request
        return request.name

    def cancel(self, name: str) -> None:
        """See `BatchEngine`."""
        self._waiting.pop(name, None)
        if self._decoding is not None and name == self._name:
            self._end()

    def step(self) -> Sequence[Outcome]:
        """See `BatchEngine`."""
        if self._decoding is None:
            self._name, request = self._waiting.popitem(last=False)
            self._decoding = self._stream(request)
        name = self._name
        try:
            event = next(self._decoding)
        except RequestError as error:
            self._end()
            return [(name, error)]
        if event.finish_reason is not None:
            self._end()
        return [(name, event)]

    def close(self) -> None:
        """See `BatchEngine`."""
        self._waiting.clear()
        self._end()
        self._close()

    def _end(self) -> None:
        if self._decoding is not None:
            self._decoding.close()
            self._decoding = None
