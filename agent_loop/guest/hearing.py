"""Lines of a guest, with an end to patience: one that never answers must not hold up the others."""

from __future__ import annotations

import os
import select
import time

from agent_loop.guest.wire import LINE_BYTES
from harness.errors import BackendError

BLOCK = 1 << 16


class Ear:
    """Reads a pipe line by line."""

    def __init__(self, descriptor: int, name: str, patience_s: float) -> None:
        """Read nothing yet.

        Args:
            descriptor: of the pipe.
            name: of the arm, for messages.
            patience_s: seconds that a line may take.
        """
        self._descriptor = descriptor
        self._name = name
        self._patience = patience_s
        self._held = bytearray()

    def line(self) -> bytes:
        """The next line, its end included.

        Raises:
            BackendError: the guest has ended, says too much at once, or nothing for too long.
        """
        end = time.monotonic() + self._patience
        searched = 0
        while (cut := self._held.find(b"\n", searched)) < 0:
            searched = len(self._held)
            if searched > LINE_BYTES:
                raise BackendError(f"arms[{self._name}].params: the guest said too much at once")
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise BackendError(f"guest {self._name} said nothing for {self._patience:g} s")
            block = os.read(self._descriptor, BLOCK)
            if not block:
                raise BackendError(f"arms[{self._name}].params: the guest ended")
            self._held += block
        found = bytes(self._held[: cut + 1])
        del self._held[: cut + 1]
        return found
