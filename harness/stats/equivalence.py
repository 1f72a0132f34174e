"""What an interval says: faster, slower, equivalent, inconclusive - and Holm's correction.

The verdict is a function of the printed interval and margin alone, so a reader can check it.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.results import Interval, SpeedVerdict


def is_equivalent(found: Interval, margin: float) -> bool:
    """Two one-sided tests (Schuirmann 1987) on the log ratio, each at (1 - confidence) / 2.

    Equivalent if the interval lies inside (1 / (1 + margin), 1 + margin). With a 95 % interval
    both tests run at 2.5 %, the level at which "faster" and "slower" are said, not at the 5 % of
    a 90 % interval: one printed interval carries all verdicts.
    """
    return has_width(found) and 1.0 / (1.0 + margin) < found.low and found.high < 1.0 + margin


def speed_verdict(found: Interval, margin: float) -> SpeedVerdict:
    """The verdict of an interval; the first that holds, in this order.

    1. inconclusive: no width - a single or frozen measurement is no evidence of its own spread;
    2. equivalent: the whole interval inside the margin, even if it also lies wholly above or
       below 1, as a difference proven too small to matter is no speedup;
    3. faster: the whole interval above 1;
    4. slower: the whole interval below 1;
    5. inconclusive.
    """
    if not has_width(found):
        return "inconclusive"
    if is_equivalent(found, margin):
        return "equivalent"
    if found.low > 1.0:
        return "faster"
    if found.high < 1.0:
        return "slower"
    return "inconclusive"


def has_width(found: Interval) -> bool:
    """Whether the data behind an interval shows any spread."""
    return found.high > found.low


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down adjusted p-values (Holm 1979): family-wise error under any dependence.

    >>> holm({"dflash": 0.01, "eagle3": 0.04, "ngram": 0.5})
    {'dflash': 0.03, 'eagle3': 0.08, 'ngram': 0.5}
    """
    order = sorted(p_values, key=lambda name: p_values[name])
    adjusted: dict[str, float] = {}
    floor = 0.0
    for rank, name in enumerate(order):
        floor = max(floor, min(1.0, (len(order) - rank) * p_values[name]))
        adjusted[name] = floor
    return {name: adjusted[name] for name in p_values}
