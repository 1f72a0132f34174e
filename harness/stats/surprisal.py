"""Sampled output against stock's own distribution, token by token.

At every emitted position stock, forced along the emitted prefix, has a distribution. If the tokens
were drawn from it, their log-probabilities have its mean and variance position by position, and
the standardised sum is close to normal (a martingale, so positions may depend on each other). An
engine that samples greedy-like emits tokens that are too likely (z > 0), a drafter that leaks
through emits tokens that are too unlikely (z < 0). A distribution that is wrong but equally
surprising passes: exact proofs belong on enumerable vocabularies.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from scipy import stats as distributions

from harness.errors import UndefinedMetric
from harness.results import DistributionTest

MIN_SURPRISES = 50.0  # below, skewness makes a 0.1 % test err more than 0.25 %


def distribution_test(
    log_probabilities: Sequence[float],
    means: Sequence[float],
    variances: Sequence[float],
    level: float = 0.01,
) -> DistributionTest:
    """Two-sided z-test of the emitted tokens' log-probabilities.

    Args:
        log_probabilities: natural log of stock's probability of each emitted token, after
            temperature, top-k and top-p; minus infinity for a token stock cannot emit.
        means: expected log-probability under stock at each position (minus the entropy).
        variances: variance of the log-probability under stock at each position.
        level: of the test.

    Raises:
        UndefinedMetric: the positions are so nearly certain that a normal z means nothing; the
            message says how many surprises were expected.
    """
    emitted = np.asarray(log_probabilities, dtype=np.float64)
    mean = np.asarray(means, dtype=np.float64)
    variance = np.asarray(variances, dtype=np.float64)
    if not len(emitted) == len(mean) == len(variance):
        raise ValueError(f"{len(emitted)} log-probabilities, {len(mean)} means, {len(variance)} variances")
    if np.isneginf(emitted).any():  # an impossible token needs no statistics
        return _result(len(emitted), -sys.float_info.max, 0.0, level)
    spread = float(np.sum(variance))
    surprises = float(np.sum(mean)) ** 2 / spread if spread > 0.0 else 0.0
    if surprises < MIN_SURPRISES:
        raise UndefinedMetric(
            f"the surprisal test needs about {MIN_SURPRISES:.0f} expected surprises, these "
            f"{len(emitted)} tokens hold {surprises:.1f}; judge more tokens or a higher temperature"
        )
    z = float(np.sum(emitted - mean)) / float(np.sqrt(spread))
    return _result(len(emitted), z, 2.0 * float(distributions.norm.sf(abs(z))), level)


def _result(tokens: int, z: float, p_value: float, level: float) -> DistributionTest:
    return DistributionTest(tokens=tokens, z=z, p_value=p_value, level=level, passed=p_value > level)
