"""A polite signal ends a command as Ctrl-C does, so that what it started is ended too."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

POLITE = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ending_on_signals(numbers: Sequence[signal.Signals] = POLITE) -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at the first of these signals; further ones are ignored.

    A second signal must not cut the ending short: `timeout` and terminals signal a whole group, and a
    parent signals its children once more. What is ignored already, as under `nohup`, stays so. In
    a thread other than the main one nothing changes.

    Args:
        numbers: which signals.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
