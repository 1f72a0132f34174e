"""Work beside the step that is under way, on a stream of its own where the device has streams."""

from __future__ import annotations

from types import TracebackType

import torch


class Beside:
    """A context: device work queued in it does not wait for what was queued just before it."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream; on a device without streams work runs in order."""
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._context: torch.cuda.StreamContext | None = None
        self._main: torch.cuda.Stream | None = None

    def __enter__(self) -> None:
        """What was read by the host before is done; only work since then runs at its side."""
        if self._stream is not None:
            self._main = torch.cuda.current_stream()
            self._context = torch.cuda.stream(self._stream)
            self._context.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What is queued behind waits for both."""
        if self._context is not None and self._main is not None and self._stream is not None:
            self._context.__exit__(kind, error, trace)
            self._main.wait_stream(self._stream)
            self._context = None
