"""When requests are sent: at constant concurrency, or at a fixed rate drawn before the run."""

from __future__ import annotations

import random


def poisson_arrivals(count: int, per_second: float, seed: str) -> tuple[float, ...]:
    """Send times in seconds from the start, exponential gaps, the same for every arm.

    Args:
        count: requests.
        per_second: mean rate, above 0.
        seed: of the draw; the schedule is fixed before the first request is sent.
    """
    if per_second <= 0.0:
        raise ValueError(f"`request_rate` must be above 0, got {per_second}")
    rng = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    now, times = 0.0, []
    for _ in range(count):
        now += rng.expovariate(per_second)
        times.append(now)
    return tuple(times)
