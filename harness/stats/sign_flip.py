"""The exact one-sided sign-flip test over launches: does an arm gain, whatever its noise looks like?

The unit is a fresh launch of both arms, for launches differ more than the requests in them do. Under
the hypothesis that the gain is at most the limit, with a law that is symmetric about it, the signs of
the launches' log ratios are coin flips; the share of sign patterns whose mean is at least the one seen
is the p-value (Fisher 1935). n launches give no p-value below 2 ** -n, so n must exceed log2(1 / level).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.errors import UndefinedMetric
from harness.results import BlockSpan

EXACT = 16  # launches whose patterns are all counted; more are drawn
DRAWS = 65_536
TOLERANCE = 1e-12  # of means that are equal but for rounding


def sign_flip_p(log_ratios: Sequence[float], limit: float = 0.0, seed: int = 0) -> float:
    """One-sided p-value that the mean log ratio exceeds `limit`.

    Args:
        log_ratios: one a launch: log(time of stock / time of the arm).
        limit: log(1 + the gain that must be exceeded).
        seed: of the draw of sign patterns, beyond `EXACT` launches.

    Raises:
        UndefinedMetric: no launch, or a ratio that is no number.
    """
    values = np.asarray(log_ratios, dtype=np.float64) - limit
    if not len(values) or not np.isfinite(values).all():
        raise UndefinedMetric("a sign-flip test needs the log ratio of at least one launch")
    count = len(values)
    if count <= EXACT:
        codes = np.arange(2**count, dtype=np.int64)
        signs = 1.0 - 2.0 * ((codes[:, None] >> np.arange(count)) & 1)
        return float(np.mean(signs @ values >= values.sum() - TOLERANCE))
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(DRAWS, count))
    reached = int(np.sum(signs @ values >= values.sum() - TOLERANCE))
    return (reached + 1) / (DRAWS + 1)


def least_launches(level: float) -> int:
    """Fewest launches that can give a p-value of at most `level`."""
    return max(1, math.ceil(math.log2(1.0 / level) - TOLERANCE))


def launch_log_ratios(timeline: Sequence[BlockSpan], stock: str, arm: str) -> list[float]:
    """log(busy time of `stock` / busy time of `arm`) of every launch that has both, in order."""
    busy: dict[tuple[int, str], float] = {}
    for span in timeline:
        key = span.launch, span.arm
        busy[key] = busy.get(key, 0.0) + span.busy_seconds
    launches = sorted({launch for launch, name in busy if name == arm and (launch, stock) in busy})
    return [math.log(busy[launch, stock] / busy[launch, arm]) for launch in launches]
