"""Latencies as a user feels them, and bounds on their tails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats as distributions

from harness.errors import UndefinedMetric
from harness.records import Response
from harness.results import Latency


class TailBound(NamedTuple):
    """A quantile of a sample with a distribution-free upper bound on that of its source."""

    quantile: float
    point: float
    upper: float
    confidence: float
    samples: int


def latency(responses: Sequence[Response]) -> Latency:
    """Medians and 90 % quantiles over the responses that succeeded, in milliseconds.

    TTFT is the time to the first token, E2E that to the last; TPOT = (E2E - TTFT) / (tokens - 1),
    over responses of two tokens or more.

    Raises:
        UndefinedMetric: no response succeeded.
    """
    first, last, per_token = [], [], []
    for response in responses:
        if response.status != "ok" or response.first_token_ns is None or response.end_ns is None:
            continue
        first.append(response.first_token_ns / 1e6)
        last.append(response.end_ns / 1e6)
        if len(response.token_ids) > 1:
            per_token.append((last[-1] - first[-1]) / (len(response.token_ids) - 1))
    if not first:
        raise UndefinedMetric("latency has no value: no request of the arm succeeded")
    return Latency(
        ttft_median=_quantile(first, 0.5),
        ttft_p90=_quantile(first, 0.9),
        tpot_median=_quantile(per_token, 0.5) if per_token else None,
        tpot_p90=_quantile(per_token, 0.9) if per_token else None,
        e2e_median=_quantile(last, 0.5),
        e2e_p90=_quantile(last, 0.9),
    )


def tail_bound(values: Sequence[float], quantile: float, confidence: float = 0.95) -> TailBound:
    """Upper bound on a quantile from an order statistic, exact for any continuous distribution.

    The k-th smallest of n values lies above the true quantile q with probability
    P(Binomial(n, q) < k); the smallest k that reaches `confidence` is taken. p99 at 95 % needs
    299 values.

    Raises:
        UndefinedMetric: too few values for any of them to be a bound; says how many are needed.
    """
    needed = samples_for_tail(quantile, confidence)
    ordered = sorted(values)
    if len(ordered) < needed:
        raise UndefinedMetric(
            f"p{quantile * 100:g} has no {confidence:.0%} bound from {len(ordered)} values; "
            f"measure at least {needed}"
        )
    rank = int(distributions.binom.ppf(confidence, len(ordered), quantile)) + 1
    return TailBound(quantile, _quantile(ordered, quantile), ordered[rank - 1], confidence, len(ordered))


def samples_for_tail(quantile: float, confidence: float = 0.95) -> int:
    """Values needed before the largest one bounds a quantile: quantile ** n <= 1 - confidence."""
    if not (0.0 < quantile < 1.0 and 0.0 < confidence < 1.0):
        raise ValueError(f"quantile and confidence lie between 0 and 1, got {quantile} and {confidence}")
    return math.ceil(math.log(1.0 - confidence) / math.log(quantile))


def _quantile(values: Sequence[float], level: float) -> float:
    return float(np.quantile(np.asarray(values, dtype=np.float64), level))
