"""When a failed request is sent again, and after how long. Pure.

Statuses as the API documents them: 408, 409, 429 and everything from 500 (529: overloaded) may pass; the
header `x-should-retry` overrides, `retry-after-ms` and `retry-after` say when.
"""

from __future__ import annotations

import datetime
import email.utils
import math
from collections.abc import Mapping

from harness.codec import Record

PASSING = frozenset({408, 409, 429})


class Patience(Record, frozen=True):
    """Limits of trying again. A wait that is longer is not waited: the failure goes to the explorer."""

    attempts: int = 6  # of one request, the first included
    longest_wait_s: float = 60.0
    all_waits_s: float = 300.0
    first_wait_s: float = 0.5  # doubles
    idle_s: float = 180.0  # without a byte of an answer

    def wait(self, tried: int, waited: float, asked: float | None, jitter: float) -> float | None:
        """Seconds before the next attempt; None to give up.

        Args:
            tried: attempts so far.
            waited: seconds waited so far.
            asked: what the API asked for.
            jitter: 0..1, takes up to a quarter off a wait that was not asked for.
        """
        if tried >= self.attempts:
            return None
        wait = asked
        if wait is None:
            wait = min(8.0, self.first_wait_s * 2 ** (tried - 1)) * (1.0 - 0.25 * jitter)
        if wait > self.longest_wait_s or waited + wait > self.all_waits_s:
            return None
        return wait


def passes(status: int, headers: Mapping[str, str]) -> bool:
    """Whether a failure may go away by itself."""
    told = headers.get("x-should-retry")
    if told in ("true", "false"):
        return told == "true"
    return status in PASSING or status >= 500


def asked_wait(headers: Mapping[str, str], now: datetime.datetime) -> float | None:
    """Seconds that a failure asks to wait; None if it does not say."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        if math.isfinite(seconds) and seconds >= 0.0:
            return seconds
    try:
        date = email.utils.parsedate_to_datetime(headers["retry-after"])
    except (KeyError, ValueError, TypeError):
        return None
    return max(0.0, (date - now).total_seconds())
