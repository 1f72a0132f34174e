"""What a surprisal test would have caught: the least departure it finds with 80 % power.

Everything is computed from stock's distributions at the very positions that were tested, with the
normal approximation the test itself rests on. A departure strikes each position by itself with the
same probability; a token that stock cannot emit is caught whenever it comes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats as distributions

from harness.results import Deviation

POWER = 0.8
STEPS = 60  # of a bisection: beyond the digits of a float
LARGEST = 0.4  # tilt: beyond it four cumulants do not tell enough
GRID = 200
TINY = 1e-12
Floats = npt.NDArray[np.float64]


class Stock(NamedTuple):
    """Moments of the log-probability of a draw from stock at each position, and the test's level."""

    means: Floats  # [positions]
    variances: Floats  # [positions]
    level: float  # two-sided


class Tails(NamedTuple):
    """More of the same log-probabilities [positions]: how far they spread, and how unevenly."""

    spreads: Floats  # mean distance from the mean
    thirds: Floats  # central moments
    fourths: Floats


def power(stock: Stock, values: Floats, share: float) -> float:
    """Chance that the test fails when each position is struck with probability `share`.

    Args:
        stock: of the test.
        values: log-probability [positions] under stock of the token that a struck position emits:
            minus infinity where stock cannot emit it, NaN where a position cannot be struck.
        share: in 0..1.
    """
    finite = np.isfinite(values)
    shift = np.where(finite, values - stock.means, 0.0)
    mean = share * float(shift.sum())
    struck = np.where(finite, share, 0.0)
    variance = float(((1.0 - struck) * stock.variances + struck * (1.0 - struck) * shift**2).sum())
    limit = float(distributions.norm.isf(stock.level / 2.0)) * float(np.sqrt(stock.variances.sum()))
    if variance > 0.0:
        bounds = (np.array([limit, -limit]) - mean) / np.sqrt(variance)
        upper, lower = distributions.norm.cdf(bounds)
        unseen = float(upper - lower)
    else:
        unseen = float(abs(mean) <= limit)
    impossible = int(np.isneginf(values).sum())
    return 1.0 - unseen * (1.0 - share) ** impossible


def smallest(stock: Stock, what: str, values: Floats, distances: Floats | None) -> Deviation:
    """The least share of struck positions that is caught.

    Args:
        stock: of the test.
        what: the departure, in words.
        values: see `power`.
        distances: total variation [positions] between stock's distribution and a position that is
            always struck; None where that is no distribution over tokens.
    """
    if power(stock, values, 1.0) < POWER:
        return Deviation(what=what, share=None, total_variation=None)
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if power(stock, values, middle) >= POWER else (middle, high)
    distance = None if distances is None else high * float(np.mean(distances))
    return Deviation(what=what, share=high, total_variation=distance)


def other_temperature(stock: Stock, tails: Tails, *, colder: bool) -> Deviation:
    """The nearest other temperature, in one direction, that is caught.

    To draw at 1/(1 + b) times the temperature raises stock's probabilities to the power 1 + b, which
    tilts the log-probability: its cumulants move along its own higher ones, here to the fourth, and the
    distribution by b/2 times the mean distance of the log-probability from its mean, to first order.

    Args:
        stock: of the test.
        tails: of the same positions.
        colder: below stock's temperature, else above it.
    """
    fourth = tails.fourths - 3.0 * stock.variances**2  # the cumulant
    sums = [float(values.sum()) for values in (stock.variances, tails.thirds, fourth)]
    limit = float(distributions.norm.isf(stock.level / 2.0)) * math.sqrt(sums[0])

    def seen(b: float) -> float:
        mean = b * sums[0] + b**2 / 2.0 * sums[1] + b**3 / 6.0 * sums[2]
        variance = max(0.0, sums[0] + b * sums[1] + b**2 / 2.0 * sums[2])
        upper, lower = distributions.norm.cdf(
            (np.array([limit, -limit]) - mean) / max(math.sqrt(variance), TINY)
        )
        return 1.0 - float(upper - lower)

    sign = 1.0 if colder else -1.0
    grid = [sign * LARGEST * step / GRID for step in range(1, GRID + 1)]
    found = next((b for b in grid if seen(b) >= POWER), None)
    if found is None:
        word = "lower" if colder else "higher"
        return Deviation(what=f"a {word} temperature", share=None, total_variation=None)
    return Deviation(
        what=f"drawn at {1.0 / (1.0 + found):.3g} times the temperature",
        share=1.0,
        total_variation=abs(found) / 2.0 * float(np.mean(tails.spreads)),
    )
