"""Work in a process of its own, for tests that kill it."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable


def in_fork(work: Callable[[], object]) -> int:
    """How a process that does the work ends: its signal, negative, or its code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
