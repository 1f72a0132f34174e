"""Processes that use a known amount of CPU time, however busy the machine is."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

SLEEPER = (sys.executable, "-c", "import time; time.sleep(60)")


@contextlib.contextmanager
def burner(seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """A child that ends once it has used so many CPU seconds."""
    code = f"import time\nwhile time.process_time() < {seconds}: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield process
        finally:
            process.kill()


def burn(seconds: float) -> None:
    """The same, waited for."""
    with burner(seconds) as process:
        process.wait(timeout=20)


def cpu_of_this_tree() -> float:
    """CPU seconds of this process and of its children that have ended, as the system counts them."""
    return sum(os.times()[:4])
