"""Brings what a step reports to the host while the device goes on."""

from __future__ import annotations

import torch
from torch import Tensor

SLOTS = 2  # reports under way: of the step that is read, and of the one behind it


class Mail:
    """Reports of consecutive steps, in order."""

    def __init__(self, report: Tensor) -> None:
        """Send from a buffer on the device that every step overwrites."""
        self._report = report
        cuda = report.is_cuda
        self._slots = [torch.zeros(report.shape, dtype=report.dtype, pin_memory=cuda) for _ in range(SLOTS)]
        self._events = [torch.cuda.Event() for _ in range(SLOTS)] if cuda else []  # type: ignore[no-untyped-call]
        self._sent = self._received = 0

    @property
    def waiting(self) -> int:
        """Reports sent and not yet received."""
        return self._sent - self._received

    @torch.inference_mode()
    def send(self) -> None:
        """Have the buffer copied once the work queued so far is done.

        Raises:
            ValueError: every slot waits to be received.
        """
        if self.waiting == SLOTS:
            raise ValueError(f"{SLOTS} reports wait already; receive one first")
        slot = self._sent % SLOTS
        self._slots[slot].copy_(self._report, non_blocking=True)
        if self._events:
            self._events[slot].record()
        self._sent += 1

    def receive(self) -> list[int]:
        """The oldest report; waits until it is here.

        Raises:
            ValueError: none was sent.
        """
        if not self.waiting:
            raise ValueError("no report was sent")
        slot = self._received % SLOTS
        if self._events:
            self._events[slot].synchronize()
        self._received += 1
        found: list[int] = self._slots[slot].tolist()
        return found

    def clear(self) -> None:
        """Forget what waits; what is under way arrives before anything sent later."""
        self._received = self._sent
